"""Kernels on the CPU, and tests that use them.

    cuda_emulated(name = "emulated_cast", src = "//kernels:cast.cu", deps = ["//kernels:device_headers"])
compiles a .cu file for the CPU (emulation.h); to be listed in EMULATED of this folder's BUILD, which the stand-in libcuda.so.1 is
linked from. The .cu must be visible here: exports_files(["cast.cu"], visibility = ["//tests/cuda:__pkg__"]).

    cuda_test(name = "launch_test", srcs = ["launch_test.c"], deps = [...])
is a cc_test that finds the stand-ins: its dlopen("libcuda.so.1") gets the one of this folder. seeds = 8 runs it with FAKE_CUDA_SEED 1
to 8, one after another. program = ":launch_main" in place of srcs and deps runs a program that other tests run, too.
"""

load("@cuda//:defs.bzl", "CUDA_TOOLKIT")

CUDA_HERE = CUDA_TOOLKIT + ["@platforms//cpu:x86_64"]  # the emulator changes stacks in assembly

# What GPUs punish and CPUs do not: emulated_checks.c.
CHECKS = ["-fsanitize=alignment,bounds,shift,float-cast-overflow", "-fno-sanitize-recover=all"]

def cuda_emulated(name, src, deps = []):
    native.genrule(
        name = name + "_source",
        srcs = [src],
        outs = [name + ".emulated.cc"],
        cmd = "echo '#include \"tests/cuda/emulated_mma.h\"' > $@; echo '#include \"$<\"' >> $@",
        target_compatible_with = CUDA_HERE,
    )
    native.cc_library(
        name = name,
        testonly = True,
        srcs = [name + ".emulated.cc"],
        # As for nvcc, an access through a pointer to another type is no error.
        copts = ["-std=c++17", "-Wno-unknown-pragmas", "-Wno-unused-function", "-fno-strict-aliasing"] + CHECKS,
        target_compatible_with = CUDA_HERE,
        textual_hdrs = [src],
        visibility = ["//tests:__subpackages__"],
        alwayslink = True,
        deps = deps + [
            "//tests/cuda:emulation",
            "@cuda//:headers",
        ],
    )

def cuda_test(name, srcs = [], deps = [], data = [], seeds = 1, arguments = [], program = None, **kwargs):
    if not program:
        program = ":{}_main".format(name)
        native.cc_binary(
            name = name + "_main",
            testonly = True,
            srcs = srcs,
            target_compatible_with = CUDA_HERE,
            deps = deps,
        )
    native.sh_test(
        name = name,
        srcs = ["//tests/cuda:with_stand_ins.sh"],
        args = [str(seeds), "$(rootpath {})".format(program)] + arguments,
        data = data + [program, "//tests/cuda:stand_ins"],
        target_compatible_with = CUDA_HERE,
        **kwargs
    )
