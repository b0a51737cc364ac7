/* Starts the Python hooks in an interpreter that ignores PYTHONPATH, or does not import site:
 * python -I, -E, -S. */
#ifndef IOPROF_PYTHON_START_H
#define IOPROF_PYTHON_START_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* Whether this program has an interpreter of Python in it, or linked to it. */
bool is_python(void);

/* Whether the program has loaded an interpreter itself, as frozen programs do (PyInstaller): they
 * ignore PYTHONPATH and site. */
bool has_python_library(void);

/* By the constructor. `site`: the folder of sitecustomize.py. */
void start_isolated_python(const char *site);

#pragma GCC visibility pop

#endif
