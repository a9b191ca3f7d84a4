"""Finds Open MPI by asking its compiler wrapper; the headers become @mpi//:mpi. The library is loaded at run time."""

def _mpi_impl(ctx):
    mpicc = ctx.which("mpicc")
    if not mpicc:
        fail("mpicc is not on PATH: install libopenmpi-dev and openmpi-bin")

    # Open MPI 5 needs HOME, which services and `docker --user` do not set.
    asked = ctx.execute([mpicc, "--showme:incdirs"], environment = {"HOME": ctx.os.environ.get("HOME", "/nonexistent")})
    if asked.return_code:
        fail("mpicc --showme:incdirs failed: " + asked.stderr)
    ctx.symlink(asked.stdout.strip().split(" ")[0], "include")
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
