/* The standard input, output and error of the process. */
#ifndef ZERO_TOOLS_COMMAND_STREAMS_H
#define ZERO_TOOLS_COMMAND_STREAMS_H

/* Called first in the program: opens /dev/null for a stream that the caller has closed. Without this the next file that
 * the program opens gets the stream's number, and progress lines are written into that file. */
void streams_open(void);

/* Flushes stdout and keeps the reason of the first failure. The caller may continue; streams_close reports the
 * failure. */
void streams_flush(void);

/* Called last in the program: returns `status`, or EXIT_FAILED with a message on stderr if a line of stdout was
 * lost. */
int streams_close(const char *command, int status);

#endif
