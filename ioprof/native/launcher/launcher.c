/* The command `ioprof`: starts Python so that neither the environment nor the folder of the job
 * changes what ioprof itself loads.
 *
 * The environment is passed on as it is, for the job. A script cannot do this: with another
 * Python's PYTHONHOME an interpreter does not even start, shells drop variables whose names they do
 * not like, and Python ignores SIGPIPE and SIGXFSZ before any line of a script runs, so that
 * whether the caller did is told here, by an -X option (recording/signals_given.py).
 *
 * The interpreter is the python3 beside this program, as in virtual environments. Where there is
 * none (pip install --user) it is the one on the PATH of the version whose packages have ioprof,
 * and finds them as it always does.
 */
#define _GNU_SOURCE
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IGNORED "ioprof_ignored="
#define OPTIONS 6 /* -X IGNORED -E -P -m ioprof, less the program's own name */

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/* The folder of this program, without links; empty if it cannot be told. */
static void own_folder(char folder[PATH_MAX])
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    strcpy(folder, length > 0 ? dirname(path) : "");
}

/* python3.X of `folder`/../lib/python3.X/site-packages/ioprof, else python3. */
static void version_of_packages(const char *folder, char name[NAME_MAX])
{
    static const char end[] = "/*-packages/ioprof/__init__.py";
    char pattern[PATH_MAX + 64];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/../lib/python3*%s", folder, end);
    strcpy(name, "python3");
    if (glob(pattern, 0, NULL, &found) != 0)
        return;
    const char *version =
        strstr(found.gl_pathv[found.gl_pathc - 1] + strlen(folder), "/lib/") + strlen("/lib/");
    const char *behind = strchr(version, '/');
    if (behind != NULL && behind - version < NAME_MAX)
        snprintf(name, NAME_MAX, "%.*s", (int)(behind - version), version);
    globfree(&found);
}

int main(int count, char **arguments)
{
    char folder[PATH_MAX], beside[PATH_MAX + sizeof "/python3"], name[NAME_MAX],
        ignored[sizeof IGNORED + 16];
    own_folder(folder);
    snprintf(beside, sizeof beside, "%s/python3", folder);
    bool is_beside = *folder != '\0' && access(beside, X_OK) == 0;
    if (!is_beside)
        version_of_packages(folder, name);

    char **line = calloc((size_t)count + OPTIONS + 2, sizeof *line);
    if (line == NULL)
        return 1;
    int words = 0;
    line[words++] = is_beside ? beside : name;
    snprintf(ignored, sizeof ignored, IGNORED "%s+%s", is_ignored(SIGPIPE) ? "13" : "",
             is_ignored(SIGXFSZ) ? "25" : "");
    line[words++] = "-X";
    line[words++] = ignored;
    if (is_beside)
        line[words++] = "-E";
    line[words++] = "-P";
    line[words++] = "-m";
    line[words++] = "ioprof";
    for (int number = 1; number < count; number++)
        line[words++] = arguments[number];

    execvp(line[0], line);
    perror(line[0]);
    return 1;
}
