#include "tools/command/interrupt.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/command/command.h"

enum { SAVING_GRACE_MS = 500 };

static const struct ending {
    int number;
    const char *name;
    bool may_be_ignored; /* as nohup asks for */
} endings[] = {
    {SIGINT, "SIGINT", false},   {SIGTERM, "SIGTERM", false}, {SIGHUP, "SIGHUP", true},
    {SIGUSR1, "SIGUSR1", false}, {SIGXCPU, "SIGXCPU", false},
};
enum { ENDINGS = sizeof endings / sizeof *endings };

/* A fault of the thread's own; it cannot wait for another thread. */
static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};

static struct {
    const char *command;
    bool speaks;
    sigset_t ends;
    atomic_int asked;
    atomic_int phase;
    _Atomic(const char *) doing;
} state = {.command = "", .doing = "starting"};

static const char *name_of(int number) {
    for (int i = 0; i < ENDINGS; i++)
        if (endings[i].number == number) return endings[i].name;
    return "a signal";
}

static void say(const char *text) {
    if (state.speaks && write(STDERR_FILENO, text, strlen(text)) < 0) {
        /* Nobody listens: the run ends all the same. */
    }
}

static void say_signal(int number, const char *what) {
    char line[300];
    snprintf(line, sizeof line, "\nzero %s: %s while %s: %s\n", state.command, name_of(number),
             atomic_load(&state.doing), what);
    say(line);
}

_Noreturn static void end_now(int number, const char *what) {
    say_signal(number, what);
    _exit(EXIT_SIGNAL + number);
}

/* Whether the save ended in time. */
static bool await_save(void) {
    for (int ms = 0; ms < SAVING_GRACE_MS; ms += 10) {
        if (atomic_load(&state.phase) != INTERRUPT_SAVING) return true;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    return false;
}

static void take_first(int number) {
    int phase = atomic_load(&state.phase);
    atomic_store(&state.asked, number);
    if (phase == INTERRUPT_OPENING) end_now(number, "ends before the first step; nothing is lost");
    if (phase == INTERRUPT_CLOSING) end_now(number, "ends now; all that was to be kept is kept");
    if (phase == INTERRUPT_SAVING && !await_save())
        end_now(number, "ends without this checkpoint; those before it are whole");
    say_signal(number, "stops after this step, or token of the sample; one more signal ends it at once");
}

static void *take_signals(void *unused) {
    for (;;) {
        int number;
        if (sigwait(&state.ends, &number) != 0) continue;
        int first = atomic_load(&state.asked);
        if (!first)
            take_first(number);
        else if (number != SIGXCPU) /* which comes again every second */
            end_now(number, "ends at once");
    }
    return NULL;
}

/* Signals that are not waited for reach this thread, as its mask is that of `ends` alone. */
static zero_status start_thread(struct zero_error *error) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setsigmask_np(&attributes, &state.ends);
    int failed = pthread_create(&thread, &attributes, take_signals, NULL);
    pthread_attr_destroy(&attributes);
    if (!failed) return ZERO_OK;
    return error_set(error, ZERO_E_MEMORY, "cannot start the thread that takes signals: %s",
                     strerror(failed));
}

/* A page of a mapped file or of shared memory that cannot be had. The handler stands on a stack of its own where the
 * thread has one; the process ends in any case. */
static void on_bus_error(int number) {
    say("\nzero: SIGBUS: memory backed by a file could not be read or written: a file shrank, a drive "
        "failed, or "
        "/dev/shm is full (Open MPI keeps its messages there); checkpoints that are complete stay so\n");
    _exit(EXIT_SIGNAL + number);
}

static void set_action(int number, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, NULL);
}

static bool is_ignored(int number) {
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

zero_status interrupt_open(const char *command, bool speaks, struct zero_error *error) {
    static unsigned char stack[16 * 1024];
    sigset_t blocked;
    state.command = command;
    state.speaks = speaks;
    sigemptyset(&state.ends);
    for (int i = 0; i < ENDINGS; i++) {
        if (endings[i].may_be_ignored && is_ignored(endings[i].number)) continue;
        set_action(endings[i].number, SIG_DFL, 0); /* an ignored signal never reaches sigwait */
        sigaddset(&state.ends, endings[i].number);
    }
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++) sigdelset(&blocked, synchronous[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    set_action(SIGBUS, on_bus_error, SA_ONSTACK);
    return start_thread(error);
}

void interrupt_enter(enum interrupt_phase phase, const char *doing) {
    atomic_store(&state.doing, doing);
    atomic_store(&state.phase, phase);
}

int interrupt_asked(void) { return atomic_load(&state.asked); }

/* Ranks that got different signals have no mean that is one of them: SIGTERM stands for all. */
void interrupt_take_over(double sum, double count) {
    int own = 0, mean = (int)(sum / count), number = SIGTERM;
    for (int i = 0; i < ENDINGS; i++)
        if (endings[i].number == mean && mean * count == sum) number = mean;
    atomic_compare_exchange_strong(&state.asked, &own, number);
}

int interrupt_exit_status(void) { return EXIT_SIGNAL + atomic_load(&state.asked); }
