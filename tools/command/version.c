#include "tools/command/version.h"

#include <mpi.h>
#include <oneapi/dnnl/dnnl.h>

#include "engine/zero.h"
#include "kernels/isa.h"

/* tools/install writes the commit into this section of the installed command. In the build it stays unknown: else each commit would link
 * the command anew, and run its tests again. volatile: the compiler knows the first content. */
static const volatile char commit[64] __attribute__((section(".zero_commit"))) = "unknown";

#if defined(__clang__)
static const char compiler[] = "clang " __clang_version__;
#else
static const char compiler[] = "gcc " __VERSION__;
#endif

static void print_commit(FILE *out) {
    fputs("commit     ", out);
    for (size_t i = 0; i < sizeof commit && commit[i]; i++) fputc(commit[i], out);
    fputc('\n', out);
}

/* CUDA_VERSION: that of the build's toolkit, 13000 for 13.0; 0: it has none (BUILD). */
static void print_cuda(FILE *out) {
    if (CUDA_VERSION)
        fprintf(out, "CUDA       %d.%d\n", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    else
        fputs("CUDA       none\n", out);
}

static void print_processor(FILE *out) {
    fputs("processor ", out);
    for (int isa = 0; isa < KERNEL_ISAS; isa++)
        if (kernel_isa_present((enum kernel_isa)isa))
            fprintf(out, " %s%s", kernel_isa_name((enum kernel_isa)isa),
                    isa == (int)kernel_isa() ? " (used)" : "");
    fputc('\n', out);
}

void version_print(FILE *out) {
    const dnnl_version_t *dnnl = dnnl_version();
    fprintf(out, "zero %s\n", zero_version());
    print_commit(out);
    fprintf(out, "compiler   %s\n", compiler);
    print_cuda(out);
    fprintf(out, "oneDNN     %d.%d.%d\n", dnnl->major, dnnl->minor, dnnl->patch);
    fprintf(out, "MPI        Open MPI %d.%d.%d\n", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
            OMPI_RELEASE_VERSION);
    print_processor(out);
}
