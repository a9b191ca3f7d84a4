"""Finds gcc for aarch64 and the libraries that `tools/setup --aarch64` brings; they become @aarch64//:toolchain. See .bazelrc."""

def _include_directories(ctx, gcc):
    """The compiler's own folders of headers: Bazel refuses headers that are neither there nor declared."""
    said = ctx.execute([gcc, "-v", "-E", "-x", "c++", "/dev/null"]).stderr
    listed = said.split("search starts here:\n")[-1].split("End of search list")[0]
    paths = [ctx.path(line.strip()) for line in listed.strip().split("\n")]
    return [str(path) for path in paths] + [str(path.realpath) for path in paths]

def _aarch64_impl(ctx):
    libraries = ctx.os.environ.get("HOME", "") + "/.cache/zero-aarch64"
    gcc = ctx.which("aarch64-linux-gnu-gcc")
    if not gcc or not ctx.path(libraries + "/packages").exists:
        fail("no compiler or no libraries for aarch64: run tools/setup --aarch64")
    tools = {name: "/usr/bin/false" for name in ["dwp", "llvm-cov", "llvm-profdata"]}
    tools.update({name: str(ctx.which("aarch64-linux-gnu-" + name)) for name in ["ar", "cpp", "gcc", "gcov", "ld", "nm", "objcopy", "objdump", "strip"]})
    ctx.file("BUILD", """
load("@bazel_tools//tools/cpp:unix_cc_toolchain_config.bzl", "cc_toolchain_config")

platform(
    name = "platform",
    constraint_values = [
        "@platforms//cpu:aarch64",
        "@platforms//os:linux",
    ],
)

# For Bazel's older way to choose a compiler, by --cpu, and the newer one, by --platforms: some rules take the one, some the other.
cc_toolchain_suite(
    name = "suite",
    toolchains = {{"aarch64": ":gcc"}},
)

toolchain(
    name = "toolchain",
    target_compatible_with = ["@platforms//cpu:aarch64"],
    toolchain = ":gcc",
    toolchain_type = "@bazel_tools//tools/cpp:toolchain_type",
)

filegroup(name = "none")

cc_toolchain(
    name = "gcc",
    all_files = ":none",
    compiler_files = ":none",
    dwp_files = ":none",
    linker_files = ":none",
    objcopy_files = ":none",
    strip_files = ":none",
    supports_param_files = 1,
    toolchain_config = ":config",
)

cc_toolchain_config(
    name = "config",
    abi_libc_version = "local",
    abi_version = "local",
    compile_flags = ["-fno-canonical-system-headers", "-isystem", "{libraries}/usr/include", "-Wno-builtin-macro-redefined", "-D__DATE__=\\"\\"", "-D__TIME__=\\"\\"", "-D__TIMESTAMP__=\\"\\""],
    compiler = "gcc",
    cpu = "aarch64",
    cxx_builtin_include_directories = {include_directories},
    host_system_name = "local",
    link_flags = ["-L{libraries}/usr/lib/aarch64-linux-gnu", "-Wl,-rpath-link,{libraries}/usr/lib/aarch64-linux-gnu"],
    link_libs = ["-lstdc++"],
    supports_start_end_lib = False,
    target_libc = "local",
    target_system_name = "aarch64-linux-gnu",
    tool_paths = {tools},
    toolchain_identifier = "aarch64",
)
""".format(
        include_directories = repr([libraries + "/usr/include"] + _include_directories(ctx, gcc)),
        libraries = libraries,
        tools = repr(tools),
    ))

aarch64_configure = repository_rule(
    implementation = _aarch64_impl,
    configure = True,
    environ = ["HOME", "PATH"],
    local = True,
)
