/* The feature test macro of the C library (feature_test_macros(7)). Included by every header that
 * comes before a system header. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
