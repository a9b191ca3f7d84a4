#include "tools/train/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/system/thread.h"

enum { SAVING_GRACE_MS = 500, AGAIN_MS = 1000 };

static const struct ending {
    int number;
    const char *name;
    bool may_be_ignored; /* nohup ignores it */
    /* an early warning of a scheduler or a limit: a save gets all the time that it needs */
    bool lets_save;
} endings[] = {
    {SIGINT, "SIGINT", false, false},  {SIGTERM, "SIGTERM", false, false}, {SIGHUP, "SIGHUP", true, true},
    {SIGUSR1, "SIGUSR1", false, true}, {SIGXCPU, "SIGXCPU", false, true},
};
enum { ENDINGS = sizeof endings / sizeof *endings };

static struct {
    const char *command;
    bool prints;
    sigset_t ends;
    atomic_int asked;
    atomic_int phase;
    _Atomic(const char *) doing;
    int first; /* the signal that this process got first, and when: of the thread that takes signals */
    uint64_t first_ns;
} state = {.command = "", .doing = "starting"};

static const struct ending *find_ending(int number) {
    int i = 0;
    while (i < ENDINGS - 1 && endings[i].number != number) i++;
    return &endings[i];
}

/* Skips the message if the pipe is full: a reader that does not read must not keep the process from ending. */
static void say(const char *text) {
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (!state.prints || poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT)) return;
    if (write(STDERR_FILENO, text, strlen(text)) < 0) {
        /* No reader is left; the run ends all the same. */
    }
}

static void say_signal(int number, const char *what) {
    char line[300];
    snprintf(line, sizeof line, "\nzero %s: %s while %s: %s\n", state.command, find_ending(number)->name,
             atomic_load(&state.doing), what);
    say(line);
}

_Noreturn static void end_now(int number, const char *what) {
    say_signal(number, what);
    _exit(EXIT_SIGNAL + number);
}

/* Whether a signal after the first one ends the process. SIGXCPU comes again every second. `timeout` sends its signal to the
 * process, and then to the process's group; a launcher passes Ctrl-C on to processes that also get it from the terminal. Such a
 * repeated signal is the same request. A second Ctrl-C of the terminal, which the kernel sends, is a new request, however soon it
 * comes. */
static bool asks_more(const siginfo_t *signal) {
    bool typed = signal->si_signo == SIGINT && signal->si_code == SI_KERNEL;
    bool again = signal->si_signo == state.first && !typed &&
                 clock_now_ns() - state.first_ns < AGAIN_MS * UINT64_C(1000000);
    return signal->si_signo != SIGXCPU && !again;
}

/* Waits until the save has ended, or until another signal comes. A signal without `lets_save` waits at most
 * SAVING_GRACE_MS. */
static void await_save(int number) {
    const struct timespec period = {.tv_nsec = 10 * 1000 * 1000};
    bool patient = find_ending(number)->lets_save;
    for (int ms = 0; (patient || ms < SAVING_GRACE_MS) && atomic_load(&state.phase) == INTERRUPT_SAVING;
         ms += 10) {
        siginfo_t next;
        if (sigtimedwait(&state.ends, &next, &period) > 0 && asks_more(&next))
            end_now(next.si_signo, "ends at once");
    }
}

/* Sets `asked` before it reads the phase: a run that enters another phase later then sees `asked`. */
static void take_first(int number) {
    atomic_store(&state.asked, number);
    if (atomic_load(&state.phase) == INTERRUPT_SAVING) await_save(number);
    switch (atomic_load(&state.phase)) {
    case INTERRUPT_OPENING:
        end_now(number, "ends before the first step; nothing is lost");
    case INTERRUPT_SAVING:
        end_now(number, "ends without this checkpoint; those before it are whole");
    case INTERRUPT_CLOSING:
        end_now(number, "ends now");
    default:
        say_signal(number, "stops after this step, or token of the sample; one more signal ends it at once");
    }
}

/* A signal that the process took over from another rank sets `asked` but not `first`. The process is then stopping
 * already, so its own first signal does nothing; its second one ends the process. */
static void *take_signals(void *unused) {
    for (;;) {
        siginfo_t signal;
        if (sigwaitinfo(&state.ends, &signal) < 0) continue;
        if (state.first && asks_more(&signal)) end_now(signal.si_signo, "ends at once");
        if (state.first) continue;
        state.first = signal.si_signo, state.first_ns = clock_now_ns();
        if (!atomic_load(&state.asked)) take_first(signal.si_signo);
    }
    return NULL;
}

/* The thread's mask blocks only the signals in `ends`, so every other signal is delivered to this thread. */
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

/* Runs when a page of a mapped file or of shared memory is not available. The handler runs on its own stack if the
 * thread has one. The process ends in any case. */
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

zero_status interrupt_open(const char *command, bool prints, struct zero_error *error) {
    static unsigned char stack[16 * 1024];
    sigset_t blocked;
    state.command = command;
    state.prints = prints;
    sigemptyset(&state.ends);
    for (int i = 0; i < ENDINGS; i++) {
        if (endings[i].may_be_ignored && is_ignored(endings[i].number)) continue;
        set_action(endings[i].number, SIG_DFL, 0); /* an ignored signal never reaches sigwaitinfo */
        sigaddset(&state.ends, endings[i].number);
    }
    thread_blocked(&blocked);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    set_action(SIGBUS, on_bus_error, SA_ONSTACK);
    return start_thread(error);
}

void interrupt_enter(enum interrupt_phase phase, const char *doing) {
    atomic_store(&state.doing, doing);
    atomic_store(&state.phase, phase);
}

int interrupt_asked(void) { return atomic_load(&state.asked); }

/* If the ranks got different signals, their mean is not one of these signals; SIGTERM then stands for all. */
void interrupt_take_over(double sum, double count) {
    int own = 0, mean = (int)(sum / count), number = SIGTERM;
    for (int i = 0; i < ENDINGS; i++)
        if (endings[i].number == mean && mean * count == sum) number = mean;
    atomic_compare_exchange_strong(&state.asked, &own, number);
}

int interrupt_exit_status(void) { return EXIT_SIGNAL + atomic_load(&state.asked); }
