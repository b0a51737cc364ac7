/* The arguments of span() and emit(), without a tuple or a dict. */
#ifndef IOPROF_SPANS_ARGUMENTS_H
#define IOPROF_SPANS_ARGUMENTS_H

#include "python_api.h"

#include "wire_format.h"

/* What is no field of a record. */
enum { KIND, NAME, START, END, NUM_WORDS };

#pragma GCC visibility push(hidden)

/* Once per process. */
int intern_keywords(void);

/* Positional arguments in `order`, then keywords; all `num_words` but the name must be given.
 * Fields go into `record`, the others into `arguments`, by the enumeration above. -1 and an
 * exception where a call is not valid. */
int take_arguments(const char *function, PyObject *const *args, Py_ssize_t num_args,
                   PyObject *names, int num_words, const int *order, PyObject **arguments,
                   struct ioprof_record *record);

#pragma GCC visibility pop

#endif
