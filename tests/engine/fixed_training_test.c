/* Trainings of the toy model end in these weights on every processor: their hashes are constants here. The other tests compare
 * trainings on one processor. An intended change of bits changes a constant, and breaks the promise that old runs repeat. */
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

#define MOMENTUM "{\"type\": \"SGD\", \"params\": {\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true}}"
#define OFFLOADED "\"offload_optimizer\": {\"device\": \"cpu\"}"
#define FP8 "\"zero_quantized_weights\": \"fp8_e4m3\""
#define CODED "\"zero_quantized_weights\": true, \"zero_quantized_gradients\": true"

static const struct {
    const char *hash;
    uint32_t stage, ranks;
    zero_dtype compute;
    const char *optimizer, *tiers;
    int muon, lamb;
} trainings[] = {
    {"40e55d20046e400f4be1928d6fc42f4e", 0, 1, ZERO_F32, NULL, NULL, 0, 0},
    {"734988a4c58826b7a660c1796b11a308", 1, 2, ZERO_F32, MOMENTUM, NULL, 0, 0},
    {"c88ccd02d1055fc037ce662dd28e715d", 2, 3, ZERO_BF16, NULL, OFFLOADED, 0, 0},
    {"1da509af35bb8780986d32e84a22acea", 3, 2, ZERO_F16, NULL, NULL, 0, 0},
    {"f0fd0822f4398e57614930531d4a01bc", 3, 4, ZERO_F32, NULL, CODED, 0, 0},
    {"411ff9fd3cb900ef15ee8ef49a6815df", 3, 2, ZERO_F32, NULL, NULL, 1, 0},
    {"4ce1a9fc49bc7b2939b1988551d5b413", 3, 3, ZERO_BF16, NULL, OFFLOADED, 0, 1},
    {"c7973706a9e2a1cc99c35c6f4c698e49", 3, 4, ZERO_BF16, NULL, FP8, 0, 0},
};

int main(void) {
    for (size_t i = 0; i < sizeof trainings / sizeof *trainings; i++) {
        struct toy_setup s = toy_setup_default();
        static struct toy_result got;
        s.steps = 8, s.micro_steps = 2;
        s.stage = trainings[i].stage, s.ranks = trainings[i].ranks, s.compute = trainings[i].compute;
        s.optimizer = trainings[i].optimizer, s.tiers = trainings[i].tiers, s.muon = trainings[i].muon;
        s.lamb = trainings[i].lamb;
        toy_train(&s, &got);
        CHECK_STRING(got.error, "");
        if (!CHECK_STRING(got.hash, trainings[i].hash)) fprintf(stderr, "  training %zu\n", i);
    }
    return check_end();
}
