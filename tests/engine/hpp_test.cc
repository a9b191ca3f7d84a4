/* zero.hpp: failures with their parts, scopes that end themselves, exceptions inside a scope and inside a fill function, state and
 * notes, functions of the host that throw or jump, ranks that are threads. */
#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/zero.hpp"

namespace {

std::atomic<int> failures{0};

void check_true(bool held, const char *text, int line) {
    if (held) return;
    failures++;
    std::fprintf(stderr, "hpp_test.cc:%d: not true: %s\n", line, text);
}
#define CHECK(condition) check_true(condition, #condition, __LINE__)

/* What a function throws: its code, or ZERO_OK. *out has the rest. */
template <class Body> zero_status thrown(Body &&body, std::string *out = nullptr) {
    try {
        body();
    } catch (const zero::error &failure) {
        if (out) *out = failure.call + "|" + failure.unit + "|" + failure.what();
        return failure.code;
    }
    return ZERO_OK;
}

bool contains(const std::string &text, const char *part) { return text.find(part) != std::string::npos; }

constexpr uint64_t COUNT = 100;
constexpr const char *json = R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})";

/* A model of one unit; a step writes a gradient of ones. */
struct host {
    zero::engine engine;
    zero::unit layer;
    zero::param<float> weight;
    explicit host(const zero_runtime &runtime = zero::make<zero_runtime>(), const char *text = json)
        : engine(text, runtime), layer(engine.add_unit("layer")), weight(layer.add("weight", {COUNT})) {
        engine.commit();
        engine.fill([](std::string_view name, uint64_t first, zero::span<float> out) {
            CHECK(name == "weight");
            for (std::size_t i = 0; i < out.size(); i++) out[i] = static_cast<float>(first + i);
        });
    }
    void forward() {
        engine.micro(ZERO_TRAIN);
        layer.forward([&] { CHECK(weight.value().size() == COUNT && weight.value()[7] > 6); });
    }
    void backward() {
        zero::use in = layer.backward();
        for (float &gradient : weight.grad()) gradient = 1;
    }
};

void failures_have_parts() {
    std::string said;
    CHECK(thrown([] { zero::engine("{\"train_batch_size\": -1}"); }, &said) == ZERO_E_CONFIG);
    CHECK(contains(said, "zero_engine_open||") && contains(said, "train_batch_size"));
    host h;
    CHECK(thrown([&] { h.layer.backward([] {}); }, &said) == ZERO_E_ORDER);
    CHECK(contains(said, "zero_backward_begin|layer|"));
    try {
        h.layer.add<uint16_t>("narrow", {1});
        CHECK(false);
    } catch (const std::invalid_argument &) {
    }
}

void scopes_end_themselves() {
    host h;
    for (int step = 1; step <= 2; step++) {
        h.forward();
        CHECK(h.weight.value().size() == 0); /* outside of a use */
        h.backward();
        CHECK(h.weight.grad().size() == 0);
        CHECK(h.engine.step().step == static_cast<uint64_t>(step));
    }
    h.engine.micro(ZERO_EVAL);
    zero::use in = h.layer.forward();
    in.end();
    in.end(); /* the second, and the destructor, do nothing */
    CHECK(h.engine.hash().size() == 32);
}

/* An end that fails in a destructor is thrown by the next call, or given to the log. */
void a_failing_end_is_not_lost() {
    std::string line, said;
    auto runtime = zero::make<zero_runtime>();
    runtime.log = [](void *user, zero_log_level level, const char *text) {
        if (level == ZERO_LOG_ERROR) *static_cast<std::string *>(user) = text;
    };
    runtime.log_user = &line;
    for (bool another : {true, false}) {
        host h(runtime);
        h.engine.micro(ZERO_TRAIN);
        {
            zero::use in = h.layer.forward();
            zero::check(zero_forward_end(h.layer.get())); /* behind the scope's back */
        }
        if (!another) break;
        CHECK(thrown([&] { h.engine.flush(); }, &said) == ZERO_E_ORDER);
        CHECK(contains(said, "zero_forward_end|layer|"));
        CHECK(thrown([&] { h.backward(); }) == ZERO_OK); /* nothing had changed, and it is thrown once */
    }
    CHECK(contains(line, "\"layer\""));
}

struct oops {};

/* The unit stays in use, so that half a gradient is not reduced. A cancelled pass was never there. */
void an_exception_in_a_use(bool in_backward) {
    host h, untouched;
    std::string said;
    bool caught = false;
    untouched.forward();
    untouched.backward();
    untouched.engine.step();
    try {
        if (in_backward)
            h.forward();
        else
            h.engine.micro(ZERO_TRAIN);
        zero::use in = in_backward ? h.layer.backward() : h.layer.forward();
        if (in_backward) h.weight.grad()[0] = 1000;
        throw oops();
    } catch (const oops &) {
        caught = true;
    }
    CHECK(caught && thrown([&] { h.engine.step(); }, &said) == ZERO_E_ORDER);
    CHECK(contains(said, "still in use"));
    h.engine.cancel();
    CHECK(h.weight.value().size() == 0);
    h.forward();
    h.engine.micro(ZERO_EVAL);
    h.layer.forward([] {});
    h.engine.resume();
    h.backward();
    CHECK(h.engine.step().step == 1);
    CHECK(h.engine.hash() == untouched.engine.hash());
}

void an_exception_in_a_fill() {
    host h;
    std::string before = h.engine.hash();
    bool caught = false;
    try {
        h.engine.fill([](std::string_view, uint64_t, zero::span<float>) { throw oops(); });
    } catch (const oops &) {
        caught = true;
    }
    CHECK(caught);
    h.engine.fill([](std::string_view, uint64_t first, zero::span<float> out) {
        for (std::size_t i = 0; i < out.size(); i++) out[i] = static_cast<float>(first + i);
    });
    CHECK(h.engine.hash() == before);
}

/* The program's functions that the engine calls throw, or jump. */
enum way { UPDATE, PREPARE, SCHEDULE, FILL, JUMP };
way present;
std::jmp_buf back;
void prepare(void *, const zero_optimizer_params *, uint64_t, float *) {
    if (present == PREPARE) throw std::runtime_error("mine");
}
void update(void *, float *, float *, float *, const float *, float, const float *, uint64_t) {
    if (present == UPDATE) throw std::runtime_error("mine");
    if (present == JUMP) std::longjmp(back, 1);
}
void schedule(void *, uint64_t, int, zero_setting *) {
    if (present == SCHEDULE) throw std::runtime_error("mine");
}
void fill(void *, const char *, uint64_t, uint64_t, float *out) {
    if (present == FILL) throw std::runtime_error("mine");
    *out = 1;
}
void train(zero::engine &engine, uint64_t count) {
    auto mine = zero::make<zero_optimizer>();
    mine.name = "mine", mine.states = 1, mine.state_names[0] = "sum";
    mine.prepare = prepare, mine.update = update;
    zero::check(zero_engine_set_optimizer(engine.get(), &mine));
    zero::check(zero_engine_set_schedule(engine.get(), schedule, nullptr));
    zero::unit layer = engine.add_unit("layer");
    zero::param<float> weight = layer.add("weight", {count});
    engine.commit();
    zero::check(zero_engine_fill(engine.get(), fill, nullptr));
    for (int step = 0; step < 2; step++) {
        engine.micro(ZERO_TRAIN);
        layer.forward([] {});
        layer.backward([&] {
            for (float &gradient : weight.grad()) gradient = 1;
        });
        engine.step();
    }
}

bool jumps(zero::engine &engine) {
    if (setjmp(back) == 0) return train(engine, 100), false;
    return true;
}

/* The call that led to the function fails, on all tiers, also where another thread updates; and the engine's end waits for nothing. */
void functions_that_do_not_return() {
    const char *place = std::getenv("TEST_TMPDIR");
    const std::string
        head =
            R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_optimizer": {)",
        drive = R"("device": "nvme", "nvme_path": ")" + std::string(place ? place : ".") + "\"",
        tiers[] = {R"("device": "none")", R"("device": "cpu")", drive};
    for (const std::string &tier : tiers)
        for (uint64_t count : {100u, 600000u})
            for (way each : {UPDATE, PREPARE, SCHEDULE, FILL}) {
                zero::engine engine(head + tier + "}}}");
                std::string said;
                present = each;
                CHECK(thrown([&] { train(engine, count); }, &said) == ZERO_E_ARGUMENT);
                CHECK(contains(said, "threw an exception: mine: "));
                CHECK(thrown([&] { engine.flush(); }) == ZERO_E_ARGUMENT);
            }
    for (const std::string &tier : tiers) {
        zero::engine engine(head + tier + "}}}"), other(json);
        std::string said;
        present = JUMP;
        CHECK(jumps(engine));
        CHECK(thrown([&] { other.flush(); }) == ZERO_E_ORDER); /* it says nothing of another engine */
        if (&tier == tiers) continue;                          /* destroyed without another call */
        CHECK(thrown([&] { engine.flush(); }, &said) == ZERO_E_ARGUMENT && contains(said, "longjmp"));
    }
}

void state_and_notes() {
    host h;
    std::vector<float> weights = h.weight.read();
    CHECK(weights.size() == COUNT && weights[42] > 41 && weights[42] < 43);
    weights[42] = -1;
    h.weight.write(weights);
    CHECK(h.weight.read() == weights && h.weight.count() == COUNT &&
          h.weight.name() == std::string("weight"));
    CHECK(h.weight.read(ZERO_STATE1) == std::vector<float>(COUNT));
    h.engine.set_note("samples", "17");
    CHECK(h.engine.note("samples") == "17");
    h.engine.set_note("samples", std::nullopt);
    CHECK(!h.engine.note("samples") && !h.engine.setting("no.such.key") &&
          h.engine.setting("zero_optimization.stage") == "3");
    zero::engine moved = std::move(h.engine);
    CHECK(!h.engine.get() && moved.hash().size() == 32);
}

/* Weights, averages as weights, and a run that has no averages. */
constexpr const char *ema =
    R"({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "ema": {"decay": 0.5}})";

void averaged_weights() {
    const char *place = std::getenv("TEST_TMPDIR");
    const std::string dir = std::string(place ? place : ".") + "/averaged", plain = dir + "_not";
    std::string said;
    host h(zero::make<zero_runtime>(), ema), weights, other;
    for (int step = 0; step < 2; step++) {
        h.forward();
        h.backward();
        h.engine.step();
    }
    const std::vector<float> average = h.weight.read(ZERO_EMA);
    h.engine.save(dir);
    CHECK(average != h.weight.read());
    weights.engine.load_weights(dir);
    CHECK(weights.weight.read() == h.weight.read() && weights.engine.steps() == 0 &&
          weights.engine.passes() == 0);
    weights.engine.load_ema(dir);
    CHECK(weights.weight.read() == average);
    other.engine.save(plain);
    CHECK(thrown([&] { h.engine.load_ema(plain); }, &said) == ZERO_E_ARGUMENT);
    CHECK(contains(said, "zero_engine_load_ema||") && contains(said, "has no averaged weights"));
}

/* What an evaluation reads. */
std::vector<float> evaluated(host &h) {
    std::vector<float> seen;
    h.engine.micro(ZERO_EVAL);
    h.layer.forward([&] { seen.assign(h.weight.value().begin(), h.weight.value().end()); });
    return seen;
}

void averages_take_the_place_of_weights() {
    host h(zero::make<zero_runtime>(), ema), plain;
    h.forward();
    h.backward();
    h.engine.step();
    const std::vector<float> weights = h.weight.read(), average = h.weight.read(ZERO_EMA);
    const std::string hash = h.engine.hash();
    std::string said;
    CHECK(average != weights);
    h.engine.averaged([&] {
        CHECK(evaluated(h) == average);
        CHECK(thrown([&] { h.engine.hash(); }, &said) == ZERO_E_ORDER);
    });
    CHECK(contains(said, "zero_engine_hash||") && contains(said, "call zero_engine_ema_end first"));
    CHECK(evaluated(h) == weights && h.engine.hash() == hash);
    {
        zero::averages in = h.engine.averaged();
        CHECK(evaluated(h) == average);
    }
    CHECK(h.engine.hash() == hash);
    try {
        zero::averages in = h.engine.averaged();
        throw oops();
    } catch (const oops &) {
    }
    CHECK(evaluated(h) == average);
    h.engine.ema_end();
    CHECK(h.engine.hash() == hash && h.weight.read(ZERO_EMA) == average);
    zero::averages ended = h.engine.averaged();
    ended.end();
    ended.end(); /* the second, and the destructor, do nothing */
    CHECK(h.engine.hash() == hash);
    CHECK(thrown([&] { plain.engine.averaged([] { CHECK(false); }); }, &said) == ZERO_E_ARGUMENT);
    CHECK(contains(said, "zero_engine_ema_begin||"));
}

/* One rank fails in its model: the others learn that it has left, and run throws what it threw. */
void parked_between_steps() {
    host h;
    std::string hash = h.engine.hash(), said;
    h.engine.park(ZERO_CPU);
    CHECK(thrown([&] { h.engine.hash(); }, &said) == ZERO_E_ORDER);
    CHECK(contains(said, "call zero_engine_unpark first"));
    h.engine.unpark();
    CHECK(h.engine.hash() == hash);
    h.forward();
    h.backward();
    h.engine.step();
}

void ranks_are_threads() {
    std::atomic<int> left{0};
    zero::local(2).run([&](const zero_runtime &runtime) {
        host h(runtime);
        h.forward();
        h.backward();
        h.engine.step();
        CHECK(h.engine.size() == 2 && h.engine.sum(h.engine.rank() + 1) > 2.5);
    });
    bool caught = false;
    try {
        zero::local(2).run([&](const zero_runtime &runtime) {
            host h(runtime);
            h.forward();
            if (h.engine.rank() == 1) throw oops();
            zero_status status = thrown([&] {
                h.backward();
                h.engine.step();
            });
            if (status == ZERO_E_PEER) left++;
        });
    } catch (const oops &) {
        caught = true;
    }
    CHECK(caught && left == 1);
}

} // namespace

int main() {
    failures_have_parts();
    scopes_end_themselves();
    a_failing_end_is_not_lost();
    an_exception_in_a_use(false);
    an_exception_in_a_use(true);
    an_exception_in_a_fill();
    functions_that_do_not_return();
    state_and_notes();
    parked_between_steps();
    averaged_weights();
    averages_take_the_place_of_weights();
    ranks_are_threads();
    return failures != 0;
}
