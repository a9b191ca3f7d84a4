"""CUDA: the repository @cuda, and kernels as fatbins.

@cuda is the toolkit of CUDA 12.8 or later at CUDA_HOME, else at /usr/local/cuda, else around the nvcc on PATH (find_cuda). It has
  @cuda//:headers   cuda.h, cublasLt.h for C and C++; nothing to link: their libraries are loaded at run time
  CUDA_TOOLKIT      (of @cuda//:defs.bzl) for target_compatible_with: without a toolkit such targets are skipped
  if_cuda(a, b)     a with a toolkit, else b: sources and deps that a target has only with CUDA, or only without
Where a part of it is missing, there is no toolkit, and a line says which. --repo_env=CUDA_HOME=/none builds without.

A kernel file kernels/NAME.cu, its arguments in kernels/NAME.h (C, for the host too):
    cuda_fatbin(name = "NAME_fatbin", src = "NAME.cu", deps = [":NAME"])
makes a cc_library that defines `const unsigned char NAME_fatbin[]`, machine code for each of CUDA_ARCHITECTURES and PTX for
later ones. architectures = ["90a"]: for the GPUs of sm_90 alone, without PTX. fmad = True lets the compiler fuse a * b + c: not
for the engine's kernels, whose bits are the CPU's.
"""

load("@cuda//:defs.bzl", "CUDA_TOOLKIT", "NVCC")

CUDA_ARCHITECTURES = ["80", "90", "100"]

def _fatbin_impl(ctx):
    headers = depset(transitive = [d[CcInfo].compilation_context.headers for d in ctx.attr.deps])
    fatbin = ctx.actions.declare_file(ctx.attr.symbol + ".fatbin")
    assembly = ctx.actions.declare_file(ctx.attr.symbol + ".S")
    arguments = ctx.actions.args()
    arguments.add_all(["-fatbin", "--no-compress", "-O3", "-std=c++17", "-I.", "-I" + ctx.bin_dir.path])
    strict = ctx.var.get("warnings") == "errors"  # .ci/bazelrc
    if strict:
        arguments.add("--Werror=all-warnings")
    arguments.add("--fmad=" + ("true" if ctx.attr.fmad else "false"))
    for architecture in ctx.attr.architectures:
        arguments.add("-gencode=arch=compute_{0},code=sm_{0}".format(architecture))
    if ctx.attr.architectures == CUDA_ARCHITECTURES:
        arguments.add("-gencode=arch=compute_{0},code=compute_{0}".format(CUDA_ARCHITECTURES[-1]))
    arguments.add_all(ctx.attr.copts)
    arguments.add("-o", fatbin)
    arguments.add(ctx.file.src)

    # Temporary files are named after nvcc's process, and every sandbox counts its processes from 1 in the same /tmp.
    # Where products of warpgroups do not overlap, or the compiler has to add waits, it only says so (C7510 to C7520).
    ctx.actions.run_shell(
        command = 'TMPDIR=$(mktemp -d) && export TMPDIR && trap \'rm -rf "$TMPDIR"\' EXIT && ' +
                  '{ "$@" 2>"$TMPDIR/said" || { cat "$TMPDIR/said" >&2 && false; }; } && ' +
                  'cat "$TMPDIR/said" >&2' + (' && ! grep "(C75" "$TMPDIR/said"' if strict else ""),
        arguments = [NVCC, arguments],
        inputs = depset([ctx.file.src], transitive = [headers]),
        outputs = [fatbin],
        mnemonic = "CudaFatbin",
        use_default_shell_env = True,
    )
    # The compiler does not say that it read the fatbin, so Bazel would keep an object file when only the fatbin changes: the
    # assembly has its checksum.
    ctx.actions.run_shell(
        command = """cat >"$1" <<END
    .section .rodata
    .balign 64
    .global $3
    .type $3, @object
$3: /* $(cksum <"$2") */
    .incbin "$2"
    .size $3, . - $3
    .section .note.GNU-stack, "", @progbits
END""",
        arguments = [assembly.path, fatbin.path, ctx.attr.symbol],
        inputs = [fatbin],
        outputs = [assembly],
        mnemonic = "CudaAssembly",
    )
    return [
        DefaultInfo(files = depset([assembly])),
        OutputGroupInfo(fatbin = depset([fatbin])),
    ]

_fatbin = rule(
    implementation = _fatbin_impl,
    attrs = {
        "architectures": attr.string_list(mandatory = True),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "fmad": attr.bool(),
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "symbol": attr.string(mandatory = True),
    },
)

# Machine code for a GPU is the same in all configurations of the host's compiler: it is made once, in Bazel's configuration for
# tools (exec).
def _once_impl(ctx):
    made = ctx.attr.made
    return [
        DefaultInfo(files = made[DefaultInfo].files),
        OutputGroupInfo(fatbin = made[OutputGroupInfo].fatbin),
    ]

_once = rule(
    implementation = _once_impl,
    attrs = {"made": attr.label(cfg = "exec", mandatory = True)},
)

def cuda_fatbin(name, src, architectures = CUDA_ARCHITECTURES, deps = [], fmad = False, copts = [], visibility = None, tags = []):
    """A cc_library with one symbol, `name`: see the head of this file."""
    _fatbin(
        name = name + "_compiled",
        src = src,
        architectures = architectures,
        copts = copts,
        fmad = fmad,
        symbol = name,
        tags = tags + ["manual"],
        target_compatible_with = CUDA_TOOLKIT,
        deps = deps,
    )
    _once(
        name = name + "_assembly",
        made = name + "_compiled",
        tags = tags,
        target_compatible_with = CUDA_TOOLKIT,
    )
    native.filegroup(
        name = name + "_file",
        srcs = [name + "_assembly"],
        output_group = "fatbin",
        tags = tags,
        visibility = visibility,
    )
    native.cc_library(
        name = name,
        srcs = [name + "_assembly"],
        alwayslink = True,  # rows refer to it weakly
        linkstatic = True,
        tags = tags,
        target_compatible_with = CUDA_TOOLKIT,
        textual_hdrs = [name + "_file"],  # the assembly includes this file
        visibility = visibility,
    )
