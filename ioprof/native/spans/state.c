#include "state.h"

int mode;
struct ioprof_ring recording;
struct ioprof_ring rehearsal;
__thread struct ioprof_writer writer;
struct redirection redirection;
