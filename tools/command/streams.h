/* The standard input, output and error of the process. */
#ifndef ZERO_TOOLS_COMMAND_STREAMS_H
#define ZERO_TOOLS_COMMAND_STREAMS_H

/* First of all: a stream that the caller has closed becomes /dev/null. Else the next file that is opened gets the
 * stream's number, and progress lines are written into that file. */
void streams_open(void);

/* fflush(stdout), which keeps the reason of the first failure. A caller may go on: streams_close tells. */
void streams_flush(void);

/* Last of all: `status`, or EXIT_FAILED and a sentence on stderr if a line of stdout was lost. */
int streams_close(const char *command, int status);

#endif
