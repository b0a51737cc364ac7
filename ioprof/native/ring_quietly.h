/* ring.h without the warnings about those of its functions that its includer does not need. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "ring.h"
#pragma GCC diagnostic pop
