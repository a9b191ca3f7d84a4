/* A program in C++ that trains another kind of model than a transformer: a deep and wide one (Cheng et al. 2016), which predicts
 * clicks. The wide part is linear in the categories and in crosses of them; the deep part is embeddings of the categories and a
 * multi-layer perceptron. Few rows of the tables take part in a batch. The data is synthetic: clicks follow from a planted rule.
 *
 * struct model, train() and run_rank() hold all code for the engine, through zero.hpp.
 *
 *   deep_wide --ranks 2 --stage 3 --steps 200
 *   deep_wide --offload nvme:/var/tmp            optimizer state on a drive; cpu: in host memory */
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <zero/zero.hpp>

namespace {

constexpr std::size_t FIELDS = 6, CATEGORIES = 200, DENSE = 4, EMBEDDED = 8, CROSSES = 1024, HIDDEN = 32,
                      BATCH = 64;
constexpr std::size_t DEEP = FIELDS * EMBEDDED + DENSE; /* what the perceptron takes */

struct options {
    uint32_t ranks = 1, stage = 3, steps = 200;
    std::string offload = "none";
};

/* ---- data ---- */

/* splitmix64, in [0, 1). */
double uniform(uint64_t &state) {
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/* A number in [-1, 1) that belongs to a key: the planted rule. */
double planted(uint64_t key) {
    uint64_t state = key * 0xd1342543de82ef95u;
    return 2 * uniform(state) - 1;
}

struct sample {
    std::size_t category[FIELDS], cross[FIELDS - 1]; /* rows of the tables */
    float dense[DENSE];
    float clicked;
};

/* Low categories are frequent. Each category has an effect, each pair of neighbours another, and the dense numbers a third. */
sample read_sample(uint64_t &random) {
    sample s{};
    double score = 0;
    for (std::size_t f = 0; f < FIELDS; f++) {
        double u = uniform(random);
        s.category[f] =
            f * CATEGORIES + static_cast<std::size_t>(u * u * u * static_cast<double>(CATEGORIES));
        score += planted(s.category[f]);
        if (f == 0) continue;
        uint64_t pair = s.category[f - 1] * FIELDS * CATEGORIES + s.category[f];
        s.cross[f - 1] = static_cast<std::size_t>(pair * 0x9e3779b97f4a7c15u >> 40) % CROSSES;
        score += planted(pair + 1000000);
    }
    for (std::size_t i = 0; i < DENSE; i++) {
        s.dense[i] = static_cast<float>(2 * uniform(random) - 1);
        score += s.dense[i] * s.dense[(i + 1) % DENSE];
    }
    s.clicked = score > 0 ? 1 : 0;
    return s;
}

/* ---- arithmetic: rows of a batch, fp32 ---- */

using matrix = std::vector<float>;
using samples = std::vector<sample>;

void relu_forward(matrix &x) {
    for (float &value : x) value = value > 0 ? value : 0;
}

void relu_backward(const matrix &y, matrix &dy) {
    for (std::size_t i = 0; i < y.size(); i++) dy[i] = y[i] > 0 ? dy[i] : 0;
}

/* The mean log loss. Logits become their gradient. */
double log_loss(matrix &logits, const samples &batch) {
    double loss = 0;
    for (std::size_t r = 0; r < BATCH; r++) {
        double z = logits[r], clicked = batch[r].clicked;
        loss += std::fmax(z, 0) - z * clicked + std::log1p(std::exp(-std::fabs(z)));
        logits[r] = static_cast<float>((1 / (1 + std::exp(-z)) - clicked) / static_cast<double>(BATCH));
    }
    return loss / static_cast<double>(BATCH);
}

/* ---- the model ---- */

/* All gradients are added to: the engine clears them. */
zero_param adds() {
    auto more = zero::make<zero_param>();
    more.flags = ZERO_ADDS_GRAD;
    return more;
}

/* A unit: y = x weight' + bias; weight is outs x ins. */
struct linear {
    std::size_t ins, outs;
    zero::unit unit;
    zero::param<float> weight, bias;

    linear(zero::engine &engine, const std::string &name, std::size_t ins_, std::size_t outs_)
        : ins(ins_), outs(outs_), unit(engine.add_unit(name)),
          weight(unit.add(name + ".weight", {outs, ins}, adds())),
          bias(unit.add(name + ".bias", {outs}, adds())) {}

    void forward(const matrix &x, matrix &y) const {
        zero::use in = unit.forward();
        zero::span<const float> w = weight.value(), b = bias.value();
        for (std::size_t r = 0; r < BATCH; r++)
            for (std::size_t o = 0; o < outs; o++) {
                float sum = b[o];
                for (std::size_t i = 0; i < ins; i++) sum += x[r * ins + i] * w[o * ins + i];
                y[r * outs + o] = sum;
            }
    }

    void backward(const matrix &x, const matrix &dy, matrix &dx) const {
        zero::use in = unit.backward();
        zero::span<const float> w = weight.value();
        zero::span<float> dw = weight.grad(), db = bias.grad();
        dx.assign(dx.size(), 0);
        for (std::size_t r = 0; r < BATCH; r++)
            for (std::size_t o = 0; o < outs; o++) {
                float d = dy[r * outs + o];
                db[o] += d;
                for (std::size_t i = 0; i < ins; i++) {
                    dw[o * ins + i] += d * x[r * ins + i];
                    dx[r * ins + i] += d * w[o * ins + i];
                }
            }
    }
};

/* Units are declared in the order in which a forward uses them. */
struct model {
    zero::unit wide;
    zero::param<float> categories, crosses; /* a weight each */
    zero::unit embedding;
    zero::param<float> table; /* FIELDS x CATEGORIES x EMBEDDED */
    linear first, second, head;

    explicit model(zero::engine &engine)
        : wide(engine.add_unit("wide")),
          categories(wide.add("wide.categories", {FIELDS * CATEGORIES}, adds())),
          crosses(wide.add("wide.crosses", {CROSSES}, adds())), embedding(engine.add_unit("embedding")),
          table(embedding.add("embedding", {FIELDS, CATEGORIES, EMBEDDED}, adds())),
          first(engine, "first", DEEP, HIDDEN), second(engine, "second", HIDDEN, HIDDEN),
          head(engine, "head", HIDDEN, 1) {}
};

/* Kept from the forward for the backward, and the gradients of these. */
struct activations {
    matrix deep = matrix(BATCH * DEEP), one = matrix(BATCH * HIDDEN), two = matrix(BATCH * HIDDEN);
    matrix wide = matrix(BATCH), logits = wide, ddeep = deep, done = one, dtwo = two;
};

void wide_forward(const model &m, const samples &batch, matrix &wide) {
    for (std::size_t r = 0; r < BATCH; r++) {
        wide[r] = 0;
        for (std::size_t row : batch[r].category) wide[r] += m.categories.value()[row];
        for (std::size_t row : batch[r].cross) wide[r] += m.crosses.value()[row];
    }
}

void wide_backward(const model &m, const samples &batch, const matrix &dwide) {
    for (std::size_t r = 0; r < BATCH; r++) {
        for (std::size_t row : batch[r].category) m.categories.grad()[row] += dwide[r];
        for (std::size_t row : batch[r].cross) m.crosses.grad()[row] += dwide[r];
    }
}

void embedding_forward(const model &m, const samples &batch, matrix &deep) {
    for (std::size_t r = 0; r < BATCH; r++) {
        float *out = &deep[r * DEEP];
        for (std::size_t row : batch[r].category)
            for (std::size_t i = 0; i < EMBEDDED; i++) *out++ = m.table.value()[row * EMBEDDED + i];
        for (float number : batch[r].dense) *out++ = number;
    }
}

void embedding_backward(const model &m, const samples &batch, const matrix &ddeep) {
    for (std::size_t r = 0; r < BATCH; r++)
        for (std::size_t f = 0; f < FIELDS; f++)
            for (std::size_t i = 0; i < EMBEDDED; i++)
                m.table.grad()[batch[r].category[f] * EMBEDDED + i] += ddeep[r * DEEP + f * EMBEDDED + i];
}

/* ---- training ---- */

/* The deep part begins small and the wide part at zero. A value depends on the name and the element alone, so that any rank makes any
 * range. */
void initialize(std::string_view name, uint64_t first, zero::span<float> out) {
    uint64_t seed = 14695981039346656037u; /* FNV-1a */
    for (char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211u;
    bool zeros = name.substr(0, 4) == "wide" || name.find(".bias") != name.npos;
    for (std::size_t i = 0; i < out.size(); i++)
        out[i] = zeros ? 0 : static_cast<float>(0.25 * planted(seed + first + i));
}

double train(zero::engine &engine, const model &m, const samples &batch, activations &a) {
    engine.micro(ZERO_TRAIN);
    m.wide.forward([&] { wide_forward(m, batch, a.wide); });
    m.embedding.forward([&] { embedding_forward(m, batch, a.deep); });
    m.first.forward(a.deep, a.one);
    relu_forward(a.one);
    m.second.forward(a.one, a.two);
    relu_forward(a.two);
    m.head.forward(a.two, a.logits);
    for (std::size_t r = 0; r < BATCH; r++) a.logits[r] += a.wide[r];
    double loss = log_loss(a.logits, batch);
    m.head.backward(a.two, a.logits, a.dtwo);
    relu_backward(a.two, a.dtwo);
    m.second.backward(a.one, a.dtwo, a.done);
    relu_backward(a.one, a.done);
    m.first.backward(a.deep, a.done, a.ddeep);
    m.embedding.backward([&] { embedding_backward(m, batch, a.ddeep); });
    m.wide.backward([&] { wide_backward(m, batch, a.logits); });
    engine.step();
    return engine.sum(loss) / engine.size();
}

std::string configuration(const options &flags) {
    std::string offload = "{\"device\": \"" + flags.offload.substr(0, flags.offload.find(':')) + "\"";
    if (flags.offload.find(':') != std::string::npos)
        offload += ", \"nvme_path\": \"" + flags.offload.substr(flags.offload.find(':') + 1) + "\"";
    return "{\"train_micro_batch_size_per_gpu\": " + std::to_string(BATCH) +
           ", \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.01}}, \"zero_optimization\": "
           "{\"stage\": " +
           std::to_string(flags.stage) + ", \"offload_optimizer\": " + offload + "}}}";
}

void run_rank(const options &flags, const zero_runtime &runtime) {
    zero::engine engine(configuration(flags), runtime);
    model m(engine);
    activations a;
    samples batch(BATCH);
    engine.commit();
    engine.fill(initialize);
    uint64_t random = 1000 + engine.rank();
    double loss = 0;
    for (uint32_t step = 1; step <= flags.steps; step++) {
        for (sample &s : batch) s = read_sample(random);
        loss += train(engine, m, batch, a) / 20;
        if (step % 20) continue;
        if (engine.rank() == 0) std::printf("step %u  loss %.4f\n", step, loss); /* the mean of 20 steps */
        loss = 0;
    }
    std::string hash = engine.hash();
    if (engine.rank() == 0) std::printf("weights %s\n", hash.c_str());
}

/* The engine checks the values. */
bool parse(int argc, char **argv, options &flags) {
    const std::map<std::string, uint32_t *> numbers = {
        {"--ranks", &flags.ranks}, {"--stage", &flags.stage}, {"--steps", &flags.steps}};
    for (int i = 1; i + 1 < argc; i += 2) {
        auto found = numbers.find(argv[i]);
        if (found != numbers.end())
            *found->second = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
        else if (argv[i] == std::string("--offload"))
            flags.offload = argv[i + 1];
        else
            return false;
    }
    return argc % 2 == 1;
}

} // namespace

int main(int argc, char **argv) {
    options flags;
    if (!parse(argc, argv, flags)) {
        std::fputs("usage: deep_wide [--ranks N] [--stage 0..3] [--steps N] [--offload none|cpu|nvme:DIR]\n",
                   stderr);
        return 2;
    }
    try {
        if (flags.ranks == 1) /* or ranks of mpirun or torchrun */
            run_rank(flags, zero::make<zero_runtime>());
        else
            zero::local(flags.ranks).run([&](const zero_runtime &runtime) { run_rank(flags, runtime); });
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "deep_wide: %s\n", failure.what());
        return 1;
    }
    return 0;
}
