/* The completion of a shell. */
#include <string.h>

#include "tools/command/command.h"

/* ---- bash: words, and files where a word begins with no hyphen ---- */

static void bash(const struct command *const *commands, int count, FILE *out) {
    fputs("# Completion of zero for bash.\n"
          "_zero() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} words\n"
          "    case ${COMP_WORDS[1]} in\n",
          out);
    for (int i = 0; i < count; i++) {
        fprintf(out, "    %s) words='", commands[i]->name);
        for (const struct option *o = commands[i]->options; o && o->name; o++) fprintf(out, "%s ", o->name);
        fputs("--help' ;;\n", out);
    }
    fputs("    esac\n"
          "    if ((COMP_CWORD == 1)); then words='",
          out);
    for (int i = 0; i < count; i++) fprintf(out, "%s ", commands[i]->name);
    fputs("--help --version'; elif [[ $word != -* ]]; then words=; fi\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "}\n"
          "complete -o default -F _zero zero\n",
          out);
}

/* ---- zsh: the same with what each word means ---- */

/* In single quotes, with the signs of _describe and _arguments as characters. */
static void quote(const char *text, FILE *out) {
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fprintf(out, strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
    }
}

static void zsh_option(const struct option *o, FILE *out) {
    fprintf(out, " \\\n            '%s%s[", o->kind == OPTION_EACH ? "*" : "", o->name);
    quote(o->help, out);
    fputc(']', out);
    if (o->value) fprintf(out, "%s:", o->kind == OPTION_MAYBE || o->kind == OPTION_NAME ? ":" : "");
    if (o->value) quote(o->value, out);
    if (o->value) fputs(":_files", out);
    fputc('\'', out);
}

static void zsh(const struct command *const *commands, int count, FILE *out) {
    fputs("#compdef zero\n# Completion of zero for zsh.\n_zero() {\n    local -a commands=(\n", out);
    for (int i = 0; i < count; i++) {
        fprintf(out, "        '%s:", commands[i]->name);
        quote(commands[i]->summary, out);
        fputs("'\n", out);
    }
    fputs("    )\n    if ((CURRENT == 2)); then\n        _describe command commands\n        return\n    fi\n"
          "    local command=$words[2]\n    shift words\n    ((CURRENT--))\n    case $command in\n",
          out);
    for (int i = 0; i < count; i++) {
        fprintf(out, "    %s)\n        _arguments", commands[i]->name);
        for (const struct option *o = commands[i]->options; o && o->name; o++) zsh_option(o, out);
        fputs(" \\\n            '*:file:_files'\n        ;;\n", out);
    }
    fputs("    esac\n}\n[[ ${funcstack[1]-} == _zero ]] && _zero \"$@\" || compdef _zero zero\n", out);
}

static const struct shell {
    const char *name;
    void (*write)(const struct command *const *commands, int count, FILE *out);
} shells[] = {{"bash", bash}, {"zsh", zsh}};

zero_status completion_write(const char *shell, const struct command *const *commands, int count, FILE *out,
                             struct zero_error *error) {
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (shell && strcmp(shells[i].name, shell) == 0)
            return shells[i].write(commands, count, out), ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT, "%s%s: give bash or zsh",
                     shell ? "there is no completion for " : "SHELL is missing", shell ? shell : "");
}
