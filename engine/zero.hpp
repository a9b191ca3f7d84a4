/* zero.h for C++17 and later: handles that destroy themselves, failures as exceptions, uses of units as scopes, typed spans. Optional,
 * and nothing but the standard library and zero.h. Both can be mixed: get() gives the handle of zero.h, for what this header leaves
 * out, and for callers that want statuses in place of exceptions.
 *
 *   zero::engine engine("config.json");
 *   zero::unit layer = engine.add_unit("layer");
 *   zero::param<float> weight = layer.add("weight", {width, width});
 *   engine.commit();
 *   engine.fill([](std::string_view name, uint64_t first, zero::span<float> out) { ... });
 *   for (...) {
 *       engine.micro(ZERO_TRAIN);
 *       layer.forward([&] { compute(weight.value()); });
 *       layer.backward([&] { compute(weight.value(), weight.grad()); });
 *       engine.step();
 *   }
 *
 * Every function but getters and destructors throws zero::error where zero.h returns another status than ZERO_OK. An exception that
 * leaves a forward or a backward does not end the unit's use, because half a result must not count. After it, call engine.cancel()
 * on all ranks to drop the pass; or destroy the engine, which tells the other ranks that this rank has left. An exception does not
 * end zero::averages either: call engine.ema_end() on all ranks then.
 *
 * Threads: as in zero.h. Units and parameters are views: copy them as you like, and do not use them after their engine.  */
#ifndef ZERO_ENGINE_ZERO_HPP
#define ZERO_ENGINE_ZERO_HPP

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero.h" /* the one beside this file */

namespace zero {

/* A struct of zero.h, with its struct_size set: zero::make<zero_param>(). */
template <class Struct> Struct make() {
    Struct made{};
    made.struct_size = sizeof made;
    return made;
}

/* A failure, with the parts of zero_failure. what() is the sentence: what went wrong, where, and what to do instead. */
struct error : std::runtime_error {
    zero_status code;
    int32_t rank;           /* at fault; -1: unknown */
    uint64_t step;          /* updates done */
    std::string call, unit; /* "zero_forward_begin"; "": none */

    /* This thread's last failure, which a call has just returned as `status`. */
    explicit error(zero_status status) : error(status, last()) {}

  private:
    error(zero_status status, const zero_failure &failure)
        : std::runtime_error(failure.sentence), code(status), rank(failure.rank), step(failure.step),
          call(failure.call ? failure.call : ""), unit(failure.unit ? failure.unit : "") {}
    static zero_failure last() {
        auto failure = make<zero_failure>();
        zero_last_failure(&failure);
        return failure;
    }
};

inline void check(zero_status status) {
    if (status != ZERO_OK) throw error(status);
}

/* A view of elements in memory that another object owns. */
template <class T> class span {
  public:
    span(T *data, std::size_t size) : data_(data), size_(data ? size : 0) {}
    T *data() const { return data_; }
    std::size_t size() const { return size_; }
    T *begin() const { return data_; }
    T *end() const { return data_ + size_; }
    T &operator[](std::size_t i) const { return data_[i]; }

  private:
    T *data_;
    std::size_t size_;
};

namespace inside {

/* The data that an engine and its views share. */
struct state {
    zero_engine *engine = nullptr;
    std::deque<zero_slot> slots; /* a deque moves no element when it grows */
    std::optional<error> unseen; /* the failure of an end in a destructor */
    zero_log_fn log = nullptr;
    void *log_user = nullptr;

    state() = default;
    state(const state &) = delete;
    state &operator=(const state &) = delete;
    ~state() {
        zero_engine_destroy(engine);
        try {
            if (unseen && log) log(log_user, ZERO_LOG_ERROR, unseen->what());
        } catch (...) {
        } /* of the program's own log */
    }
    void keep(zero_status status) noexcept {
        try {
            if (status != ZERO_OK && !unseen) unseen.emplace(status);
        } catch (...) {
        } /* no memory for the sentence; the engine's failures are sticky, and the next call has it again */
    }
    /* Throws what a destructor could not throw. */
    zero_engine *checked() {
        if (unseen) throw error(*std::exchange(unseen, std::nullopt));
        return engine;
    }
};

/* A scope between two calls of zero.h. The destructor makes the second call, unless end() did or an exception passes. If that call
 * fails in the destructor, the next call of the engine throws the failure; if there is no next call, the failure goes to the log. */
template <class Handle> class scope {
  public:
    using call = zero_status (*)(Handle *);
    scope(state &shared, Handle *handle, call first, call last)
        : state_(&shared), handle_(handle), end_(last), exceptions_(std::uncaught_exceptions()) {
        shared.checked();
        check(first(handle));
    }
    scope(const scope &) = delete;
    scope &operator=(const scope &) = delete;
    ~scope() {
        if (handle_ && std::uncaught_exceptions() <= exceptions_) state_->keep(finish());
    }
    void end() {
        if (handle_) check(finish());
    }

  protected:
    Handle *handle() const { return handle_; }

  private:
    zero_status finish() noexcept { return end_(std::exchange(handle_, nullptr)); }
    state *state_;
    Handle *handle_;
    call end_;
    int exceptions_;
};

} // namespace inside

/* A parameter whose elements are of type T: float, or a type of 2 bytes where the configuration enables bf16 or fp16 and the
 * parameter does not stay fp32 (zero_param_dtype). */
template <class T> class param {
  public:
    param(inside::state &state, zero_handle *made, const zero_slot &slot)
        : state_(&state), param_(made), slot_(&slot), count_(zero_param_count(made)) {}
    zero_handle *get() const { return param_; }
    const char *name() const { return zero_param_name(param_); }
    uint64_t count() const { return count_; }
    /* In a use of the unit; empty outside of it. */
    span<const T> value() const { return {static_cast<const T *>(slot_->param), count()}; }
    /* In a backward; empty outside of it, and for frozen parameters. */
    span<T> grad() const { return {static_cast<T *>(slot_->grad), count()}; }
    /* Whether to add to the gradient (true), or to overwrite all of it. */
    bool adds() const { return slot_->add != 0; }

    /* All elements, in fp32; write may give only the first ones. Collective, between steps. */
    std::vector<float> read(zero_kind kind = ZERO_PARAM) const {
        state_->checked();
        std::vector<float> values(count());
        check(zero_param_get(param_, kind, values.data(), 0, values.size()));
        return values;
    }
    void write(const std::vector<float> &values, zero_kind kind = ZERO_PARAM) const {
        state_->checked();
        check(zero_param_put(param_, kind, values.data(), 0, values.size()));
    }

  private:
    inside::state *state_;
    zero_handle *param_;
    const zero_slot *slot_;
    uint64_t count_;
};

/* A forward or backward of a unit. */
class use : public inside::scope<zero_unit> {
  public:
    use(inside::state &state, zero_unit *unit, bool backward)
        : scope(state, unit, backward ? zero_backward_begin : zero_forward_begin,
                backward ? zero_backward_end : zero_forward_end) {}
    void next_micro() { check(zero_unit_next_micro(handle())); }
};

/* The averaged weights are in the place of the weights. */
class averages : public inside::scope<zero_engine> {
  public:
    explicit averages(inside::state &state)
        : scope(state, state.engine, zero_engine_ema_begin, zero_engine_ema_end) {}
};

class unit {
  public:
    unit(inside::state &state, zero_unit *made) : state_(&state), unit_(made) {}
    zero_unit *get() const { return unit_; }
    void hold() const { check(zero_unit_hold(unit_)); }

    /* Declares a parameter. `more` has the other fields of zero_param: flags, tied_to, spans, ..., but user, which
     * is for fill functions in C. The engine keeps the slot. */
    template <class T = float>
    param<T> add(const std::string &name, const std::vector<uint64_t> &shape,
                 zero_param more = make<zero_param>()) const {
        bool narrow = zero_engine_dtype(state_->checked()) != ZERO_F32 && !(more.flags & ZERO_KEEP_FP32);
        if ((sizeof(T) != 4 && (sizeof(T) != 2 || !narrow)) || shape.size() > ZERO_DIMS_MAX || more.user)
            throw std::invalid_argument(name + ": T is not the engine's type, or dims or user is wrong");
        zero_slot &slot = state_->slots.emplace_back();
        more.name = name.c_str();
        more.dims = static_cast<uint32_t>(shape.size());
        for (std::size_t i = 0; i < shape.size(); i++) more.shape[i] = shape[i];
        more.slot = &slot;
        check(zero_unit_add_param(unit_, &more));
        zero_handle *handle = zero_engine_param(state_->engine, more.name);
        if ((sizeof(T) == 4) != (zero_param_dtype(handle) == ZERO_F32)) /* param_groups may keep it in fp32 */
            throw std::invalid_argument(name + ": T is not the parameter's type");
        return {*state_, handle, slot};
    }

    /* Begins a use, which ends with the returned scope: zero::use in = layer.forward(); */
    [[nodiscard]] use forward() const { return {*state_, unit_, false}; }
    [[nodiscard]] use backward() const { return {*state_, unit_, true}; }
    /* The same around a function; an end that fails throws here. */
    template <class Body> void forward(Body &&body) const { around(forward(), body); }
    template <class Body> void backward(Body &&body) const { around(backward(), body); }

  private:
    template <class Body> static void around(use scope, Body &body) {
        body();
        scope.end();
    }
    inside::state *state_;
    zero_unit *unit_;
};

class engine {
    static std::optional<std::string> text(const char *found) {
        return found ? std::optional<std::string>(found) : std::nullopt;
    }

  public:
    /* `json`: the text of a configuration, or the path of a .json file. Collective. */
    explicit engine(const std::string &json, const zero_runtime &runtime = make<zero_runtime>())
        : state_(std::make_unique<inside::state>()) {
        check(zero_engine_open(json.c_str(), &runtime, &state_->engine));
        state_->log = runtime.log;
        state_->log_user = runtime.log_user;
    }
    zero_engine *get() const { return state_ ? state_->engine : nullptr; }

    uint32_t rank() const { return zero_engine_rank(get()); }
    uint32_t size() const { return zero_engine_size(get()); }
    uint32_t data_rank() const { return zero_engine_data_rank(get()); }
    uint32_t data_size() const { return zero_engine_data_size(get()); }
    uint32_t threads() const { return zero_engine_threads(get()); }
    uint64_t steps() const { return zero_engine_steps(get()); }
    uint32_t passes() const { return zero_engine_passes(get()); }
    uint64_t micro_batch() const { return zero_engine_micro_batch(get()); }
    uint64_t accumulation_steps() const { return zero_engine_accumulation_steps(get()); }
    uint64_t use_micros() const { return zero_engine_use_micros(get()); }
    float loss_scale() const { return zero_engine_loss_scale(get()); }
    /* nullopt: the key has no value, or there is no such key. */
    auto setting(const std::string &key) const { return text(zero_engine_setting(get(), key.c_str())); }

    unit add_unit(const std::string &name) {
        zero_unit *made = nullptr;
        check(zero_engine_add_unit(state_->checked(), name.c_str(), &made));
        return {*state_, made};
    }
    /* units: the most that are in use at once; 0: any number. */
    void free_order(uint32_t units = 0) { check(zero_engine_free_order_within(state_->checked(), units)); }
    zero_plan commit() {
        auto plan = make<zero_plan>();
        check(zero_engine_commit(state_->checked(), &plan));
        return plan;
    }

    /* Initializes the weights: fill(std::string_view name, uint64_t first, zero::span<float> out), as zero_fill_fn. This function
     * rethrows an exception of `fill` once all ranks are done; the weights are then incomplete. */
    template <class Fill> void fill(Fill &&function) {
        filling<Fill> job{function, nullptr};
        check(zero_engine_fill(state_->checked(), job.call, &job));
        if (job.thrown) std::rethrow_exception(job.thrown);
    }
    /* Initializes the weights from the parameters' values or spans. */
    void fill() { check(zero_engine_fill(state_->checked(), nullptr, nullptr)); }

    void micro(zero_mode mode) { check(zero_micro_begin(state_->checked(), mode)); }
    void resume() { check(zero_micro_resume(state_->checked())); }
    void cancel() { check(zero_micro_cancel(state_->checked())); }
    zero_step_info step() {
        auto info = make<zero_step_info>();
        check(zero_engine_step(state_->checked(), &info));
        return info;
    }
    /* The host cannot go on: the other ranks learn why. */
    void fail(const std::string &why) { check(zero_engine_fail(get(), why.c_str())); }
    void flush() { check(zero_engine_flush(state_->checked())); }
    /* Between steps: frees the device's memory for something else, and takes it again. Addresses may change;
     * parameters read them in each use. */
    void park(zero_tier tier) { check(zero_engine_park(state_->checked(), tier)); }
    void unpark() { check(zero_engine_unpark(state_->checked())); }
    /* Between steps: evaluations compute with the averaged weights: between the two calls, inside the returned scope,
     * or in a function. */
    void ema_begin() { check(zero_engine_ema_begin(state_->checked())); }
    void ema_end() { check(zero_engine_ema_end(state_->checked())); }
    [[nodiscard]] averages averaged() { return averages(*state_); }
    template <class Body> void averaged(Body &&body) {
        averages scope = averaged();
        body();
        scope.end();
    }
    /* The sum over ranks. */
    double sum(double value) {
        check(zero_engine_sum(state_->checked(), &value, 1));
        return value;
    }
    std::string hash() {
        char digits[33];
        check(zero_engine_hash(state_->checked(), digits));
        return digits;
    }
    void save(const std::string &dir) { check(zero_engine_save(state_->checked(), dir.c_str())); }
    void load(const std::string &dir) { check(zero_engine_load(state_->checked(), dir.c_str())); }
    /* The weights alone, or the averaged weights as the weights; param::read(ZERO_EMA) gives this run's averages. */
    void load_weights(const std::string &dir) {
        check(zero_engine_load_weights(state_->checked(), dir.c_str()));
    }
    void load_ema(const std::string &dir) { check(zero_engine_load_ema(state_->checked(), dir.c_str())); }

    /* nullopt: as a result, there is no such note; as a value, removes the note. */
    auto note(const std::string &key) const { return text(zero_engine_note(get(), key.c_str())); }
    void set_note(const std::string &key, const std::optional<std::string> &value) {
        check(zero_engine_set_note(state_->checked(), key.c_str(), value ? value->c_str() : nullptr));
    }

  private:
    template <class Fill> struct filling {
        Fill &function;
        std::exception_ptr thrown;
        static void call(void *user, const char *name, uint64_t first, uint64_t count, float *out) {
            auto &job = *static_cast<filling *>(user);
            try {
                if (!job.thrown) job.function(std::string_view(name), first, span<float>(out, count));
            } catch (...) {
                job.thrown = std::current_exception();
            }
        }
    };
    std::unique_ptr<inside::state> state_;
};

/* A world whose ranks are threads of this program. */
class local {
  public:
    explicit local(uint32_t ranks) : world_(zero_local_create(ranks), zero_local_destroy), ranks_(ranks) {
        if (!world_) throw error(ZERO_E_MEMORY);
    }
    zero_local *get() const { return world_.get(); }

    /* Calls rank(const zero_runtime &) on a thread for each rank, waits for all, and rethrows the exception of the
     * first rank that failed. */
    template <class Rank> void run(Rank &&rank) {
        std::exception_ptr first;
        std::mutex lock;
        auto body = [&](uint32_t index) {
            auto runtime = make<zero_runtime>();
            runtime.local = get();
            runtime.local_rank = index;
            try {
                rank(static_cast<const zero_runtime &>(runtime));
            } catch (...) {
                std::lock_guard<std::mutex> hold(lock);
                if (!first) first = std::current_exception();
            }
        };
        {
            std::vector<std::future<void>> threads; /* the destructor of a future waits */
            for (uint32_t i = 0; i < ranks_; i++) threads.push_back(std::async(std::launch::async, body, i));
        }
        if (first) std::rethrow_exception(first);
    }

  private:
    std::unique_ptr<zero_local, decltype(&zero_local_destroy)> world_;
    uint32_t ranks_;
};

} // namespace zero
#endif
