/* The object that span() returns while nothing is recorded. */
#ifndef IOPROF_SPANS_INACTIVE_H
#define IOPROF_SPANS_INACTIVE_H

#include "python_api.h"

#pragma GCC visibility push(hidden)

extern PyObject *inactive_span; /* the only one */

/* Once per process. */
int prepare_inactive_span(void);

#pragma GCC visibility pop

#endif
