/* compare_logits DIR CHECKPOINT: DIR is Hugging Face's, with logits.txt; fails where the checkpoint's differ. */
#include <stdio.h>

#include "tests/tools/weights/logits.h"
#include "tools/weights/weights.h"

int main(int argc, char **argv) {
    static struct logits expected;
    struct weights *weights;
    struct zero_error error;
    char path[4096];
    error_clear(&error);
    if (argc != 3 || weights_open(argv[1], &weights, &error))
        return fprintf(stderr, "%s\n", error.message), 2;
    snprintf(path, sizeof path, "%s/logits.txt", argv[1]);
    double off = -1;
    if (logits_read(path, weights->model.vocab, &expected))
        off = logits_compare(argv[2], &weights->model, 2, &expected);
    printf("the logits differ by at most %g\n", off);
    weights_close(weights);
    return !(off >= 0 && off <= 1e-5);
}
