"""A static library of one relocatable object: what `deps` hold and need of each other, with the names of `exports` alone visible."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _static_impl(ctx):
    tools = find_cpp_toolchain(ctx)
    archive = ctx.actions.declare_file(ctx.label.name)
    whole, needed = [], []
    for dep in ctx.attr.deps:
        for part in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in part.libraries:
                file = library.pic_static_library or library.static_library
                (whole if library.alwayslink else needed).append(file)
    object = archive.dirname + "/" + archive.basename[:-2] + ".o"
    ctx.actions.run_shell(
        inputs = whole + needed,
        outputs = [archive],
        mnemonic = "Relocatable",
        use_default_shell_env = True,
        # The object's own name is what a linker's message shows. A group that the program has, too, would be dropped with what is
        # local here: no groups.
        command = """
            set -e
            {ld} -r --force-group-allocation -o "{object}" --whole-archive {whole} --no-whole-archive --start-group {needed} --end-group
            {objcopy} --wildcard --keep-global-symbol='{exports}' --strip-unneeded "{object}"
            rm -f "{archive}"
            {ar} rcD "{archive}" "{object}"
            rm "{object}"
        """.format(
            ar = tools.ar_executable,
            ld = tools.ld_executable,
            objcopy = tools.objcopy_executable,
            object = object,
            archive = archive.path,
            whole = " ".join([f.path for f in whole]),
            needed = " ".join([f.path for f in needed]),
            exports = ctx.attr.exports,
        ),
    )
    return [DefaultInfo(files = depset([archive]), runfiles = ctx.runfiles([archive]))]

static_library = rule(
    implementation = _static_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "exports": attr.string(mandatory = True, doc = "a wildcard"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
