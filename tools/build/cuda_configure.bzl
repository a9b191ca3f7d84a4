"""Finds the CUDA toolkit; what becomes of it is said in cuda.bzl."""

HEADERS = ["cuda.h", "nccl.h", "cublasLt.h", "cudnn.h"]

def _around(ctx, nvcc):
    """The toolkit's root; nvcc on PATH may be a wrapper or a link, so it is asked."""
    for line in ctx.execute([nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null"]).stderr.split("\n"):
        if line.startswith("#$ TOP="):
            return line[len("#$ TOP="):]
    return None

def _candidates(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "")
    if home:
        return [home]
    nvcc = ctx.which("nvcc")
    return ["/usr/local/cuda"] + ([_around(ctx, nvcc)] if nvcc else [])

def _find(ctx):
    for root in _candidates(ctx):
        if root and ctx.path(root + "/bin/nvcc").exists and ctx.path(root + "/include/cuda_runtime_api.h").exists:
            return root
    return None

def _version(ctx, root):
    """CUDA_VERSION of cuda.h: 13000 for 13.0."""
    for line in ctx.read(root + "/include/cuda.h").split("\n"):
        if line.startswith("#define CUDA_VERSION "):
            return line[len("#define CUDA_VERSION "):].strip()
    return "0"

def _cuda_impl(ctx):
    root = _find(ctx)
    missing = [h for h in HEADERS if root and not ctx.path(root + "/include/" + h).exists]
    if missing:
        # buildifier: disable=print
        print("CUDA at {} is left out: its include folder lacks {}; install NCCL's and cuDNN's headers there".format(root, ", ".join(missing)))
        root = None
    if root:
        ctx.symlink(root + "/include", "include")
    ctx.file("defs.bzl", """
NVCC = {nvcc}
CUDA_TOOLKIT = {toolkit}
CUDA_VERSION = {version}

def if_cuda(there, otherwise = []):
    return {choice}
""".format(
        choice = "there" if root else "otherwise",
        nvcc = repr(root + "/bin/nvcc" if root else ""),
        toolkit = repr([] if root else ["@cuda//:toolkit"]),
        version = repr(_version(ctx, root) if root else "0"),
    ))
    ctx.file("BUILD", """
# No platform has this constraint value, so targets that need it are skipped.
constraint_setting(name = "presence")

constraint_value(
    name = "toolkit",
    constraint_setting = ":presence",
    visibility = ["//visibility:public"],
)

cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**", "include/cccl/nv/**"]),
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
