/* Signals that end a run: Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU.
 *
 * Threads that compute take no signal. Some kernels of oneDNN run with their stack pointer inside the heap, where the frame of a
 * signal handler overwrites what lies below it (oneDNN's issue 4845, fixed in its version 3.11.2). So interrupt_open blocks all
 * signals in the calling thread, before it starts any other; new threads inherit that. One thread, which computes nothing, takes
 * the signals of the run by sigwaitinfo; any other signal runs its handler, or its default action, on that thread.
 *
 * The first signal of a run:
 *
 *   OPENING   ends the process at once: nothing was trained yet
 *   RUNNING   asks all ranks to stop after the step, or the token of a sample, that they are in
 *   SAVING    SIGINT, SIGTERM: gives the save half a second to end; then it ends the process: earlier checkpoints are
 *             whole. SIGHUP, SIGUSR1, SIGXCPU, which come early: lets the save end
 *   CLOSING   ends the process at once: everything to be kept is on the drive
 *
 * A second signal ends the process at once, except SIGXCPU, and except the first signal again within a second, which is the same
 * request (a second Ctrl-C of the terminal always counts). The exit status is 128 + the signal's number.
 *
 * State of the process. */
#pragma once

#include <stdbool.h>

#include "engine/base/error.h"

enum { EXIT_SIGNAL = 128 }; /* + its number: the exit status of the process */

enum interrupt_phase { INTERRUPT_OPENING, INTERRUPT_RUNNING, INTERRUPT_SAVING, INTERRUPT_CLOSING };

/* Called once, by the thread that starts all others. `command` ("train") is the name in the messages. `prints`: this
 * process prints the messages; of several processes that mpirun started, one prints them. */
zero_status interrupt_open(const char *command, bool prints, struct zero_error *error);

/* `doing` ("saving step 10", ...) is a static text for the messages. Any thread. */
void interrupt_enter(enum interrupt_phase phase, const char *doing);

/* The number of the first signal; 0: none came. Any thread. */
int interrupt_asked(void);

/* A process that got no signal takes over the signal of the other ranks and stops, too. The first signal that it gets
 * itself then changes nothing. `sum`: the sum of interrupt_asked over all ranks; `count`: the number of ranks that got
 * a signal. */
void interrupt_take_over(double sum, double count);

/* 128 + the number of the first signal, as in a shell. */
int interrupt_exit_status(void);
