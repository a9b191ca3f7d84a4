"""Makes the repository @cuda of the toolkit that find_cuda finds; what becomes of it is said in cuda.bzl."""

def _cuda_impl(ctx):
    found = ctx.execute(
        [ctx.path(Label("//tools/build:find_cuda"))],
        environment = {name: ctx.os.environ.get(name, "") for name in ["CUDA_HOME", "PATH"]},
    )
    if found.stderr:
        # buildifier: disable=print
        print(found.stderr.strip())
    nvcc, headers, version = found.stdout.split("\n")[:3] if found.stdout else ("", "", "0")
    if nvcc:
        ctx.symlink(headers, "include")
    ctx.file("defs.bzl", """
NVCC = {nvcc}
CUDA_TOOLKIT = {toolkit}
CUDA_VERSION = {version}

def if_cuda(there, otherwise = []):
    return {choice}
""".format(
        choice = "there" if nvcc else "otherwise",
        nvcc = repr(nvcc),
        toolkit = repr([] if nvcc else ["@cuda//:toolkit"]),
        version = repr(version),
    ))
    ctx.file("BUILD", """
# No platform has this constraint value, so targets that need it are skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "toolkit",
    constraint_setting = ":presence",
    visibility = ["//visibility:public"],
)

# CUDA 13 has in cccl/ what CUDA 12 has beside it.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/nv/**", "include/cccl/nv/**"]),
    includes = ["include", "include/cccl"],
    visibility = ["//visibility:public"],
)
""")

cuda_configure = repository_rule(
    implementation = _cuda_impl,
    configure = True,
    environ = ["CUDA_HOME", "PATH"],
    local = True,
)
