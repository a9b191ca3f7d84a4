/* run.json in the run's directory, for `zero report`: the request and the plan; and config.json. Only rank 0 writes them. */
#ifndef ZERO_TOOLS_COMMAND_RUN_FILE_H
#define ZERO_TOOLS_COMMAND_RUN_FILE_H

#include "tools/command/job.h"

enum { RUN_FILE_PATH_BYTES = 4096 + 32 };

/* RUN/config.json: the configuration, with what the planner chose. Replaces only what a run wrote there: run_file_check_config fails
 * (ZERO_E_ARGUMENT) if another file is in its place. */
zero_status run_file_check_config(const char *directory, struct zero_error *error);
zero_status run_file_write_config(const struct job *job, const char *directory, struct zero_error *error);

/* Removes RUN/config.json that an earlier run wrote, for a run that begins anew and chose nothing. It stays if it is the
 * configuration of this run. */
zero_status run_file_drop_config(const struct job *job, const char *directory, struct zero_error *error);

/* RUN/model.json: the config.json of --model, with which --resume goes on. A foreign file in its place stays, and then the run keeps
 * no model. */
zero_status run_file_write_model(const struct job *job, const char *directory, struct zero_error *error);

/* Its path. False: the run keeps none. */
bool run_file_model(const char *directory, char out_path[RUN_FILE_PATH_BYTES]);

zero_status run_file_write(const struct job *job, const zero_engine *engine, const zero_plan *plan,
                           uint64_t steps, const char *directory, struct zero_error *error);

#endif
