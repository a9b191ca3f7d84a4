"""Finds Open MPI by asking its compiler wrapper; the headers become @mpi//:mpi. The library is loaded at run time."""

def _mpi_impl(ctx):
    mpicc = ctx.which("mpicc")
    if not mpicc:
        fail("mpicc is not on PATH: install libopenmpi-dev and openmpi-bin")
    incdirs = ctx.execute([mpicc, "--showme:incdirs"]).stdout.strip().split(" ")
    ctx.symlink(incdirs[0], "include")
    ctx.file("BUILD", """
cc_library(
    name = "mpi",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
""")

mpi_configure = repository_rule(
    implementation = _mpi_impl,
    configure = True,
    environ = ["PATH"],
    local = True,
)
