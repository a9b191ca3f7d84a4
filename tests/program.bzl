"""Several tests of one program, which is compiled and linked once.

    cc_binary(name = "park_main", testonly = True, srcs = ["park_test.c"], ...)
    program_test(name = "park_sim_test", program = ":park_main", args = ["sim"], size = "medium")

is a test that runs the program with arguments. A cc_test for each list of arguments would compile and link a program for each.
"""

def _program_test(ctx):
    test = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = test, target_file = ctx.executable.program, is_executable = True)
    runfiles = ctx.runfiles(files = [test] + ctx.files.data).merge(ctx.attr.program[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = test, runfiles = runfiles)]

program_test = rule(
    implementation = _program_test,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "program": attr.label(executable = True, cfg = "target", mandatory = True),
    },
    test = True,
)
