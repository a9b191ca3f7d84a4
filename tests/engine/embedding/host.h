/* What the programs of engine/EMBEDDING.md, "From zero to trained", take as given. */
#include <math.h>
#include <stdint.h>

#include "engine/zero.h"

enum { N = 1000, STEPS = 5 };

extern zero_unit *layer;
extern zero_slot w;

void must(zero_status status);
float derivative(int i, float weight); /* d loss / d weight */
void derivatives_on_gpu(void *stream, const float *weights, float *grads);

zero_engine *open_engine(const char *config);
void declare(zero_engine *engine);
void initialize(zero_engine *engine);
void forward(void);
void backward(void);
void train(const char *config);
