/* Every function of the C library that the capture library interposes: HOOK(result, name,
 * parameters).
 *
 * The only list: it declares the hook, the type of the real function, and its index in the table of
 * addresses. Names that this C library lacks cost nothing, since no program calls them. Structures
 * are void here: their layout is that of the caller's C library. */

/* Opening files */
HOOK(int, open, (const char *path, int flags, ...))
HOOK(int, open64, (const char *path, int flags, ...))
HOOK(int, __open_2, (const char *path, int flags))
HOOK(int, __open64_2, (const char *path, int flags))
HOOK(int, openat, (int folder, const char *path, int flags, ...))
HOOK(int, openat64, (int folder, const char *path, int flags, ...))
HOOK(int, __openat_2, (int folder, const char *path, int flags))
HOOK(int, __openat64_2, (int folder, const char *path, int flags))
HOOK(int, creat, (const char *path, mode_t mode))
HOOK(int, creat64, (const char *path, mode_t mode))
HOOK(int, mkstemp, (char *path))
HOOK(int, mkstemp64, (char *path))
HOOK(int, mkostemp, (char *path, int flags))
HOOK(int, mkostemp64, (char *path, int flags))
HOOK(int, mkstemps, (char *path, int suffix))
HOOK(int, mkstemps64, (char *path, int suffix))
HOOK(int, mkostemps, (char *path, int suffix, int flags))
HOOK(int, mkostemps64, (char *path, int suffix, int flags))

/* Copying, moving, changing and closing descriptors */
HOOK(int, dup, (int from))
HOOK(int, dup2, (int from, int to))
HOOK(int, dup3, (int from, int to, int flags))
HOOK(int, fcntl, (int descriptor, int command, ...))
HOOK(int, fcntl64, (int descriptor, int command, ...))
HOOK(off_t, lseek, (int descriptor, off_t offset, int whence))
HOOK(off_t, lseek64, (int descriptor, off_t offset, int whence))
HOOK(int, ftruncate, (int descriptor, off_t length))
HOOK(int, ftruncate64, (int descriptor, off_t length))
HOOK(int, rename, (const char *from, const char *to))
HOOK(int, renameat, (int from_folder, const char *from, int to_folder, const char *to))
HOOK(int, renameat2,
     (int from_folder, const char *from, int to_folder, const char *to, unsigned flags))
HOOK(int, close, (int descriptor))
HOOK(int, close_range, (unsigned first, unsigned last, int flags))
HOOK(void, closefrom, (int first))

/* Reads */
HOOK(ssize_t, read, (int descriptor, void *buffer, size_t size))
HOOK(ssize_t, __read_chk, (int descriptor, void *buffer, size_t size, size_t room))
HOOK(ssize_t, pread, (int descriptor, void *buffer, size_t size, off_t offset))
HOOK(ssize_t, pread64, (int descriptor, void *buffer, size_t size, off_t offset))
HOOK(ssize_t, __pread_chk, (int descriptor, void *buffer, size_t size, off_t offset, size_t room))
HOOK(ssize_t, __pread64_chk, (int descriptor, void *buffer, size_t size, off_t offset, size_t room))
HOOK(ssize_t, readv, (int descriptor, const struct iovec *parts, int count))
HOOK(ssize_t, preadv, (int descriptor, const struct iovec *parts, int count, off_t offset))
HOOK(ssize_t, preadv64, (int descriptor, const struct iovec *parts, int count, off_t offset))
HOOK(ssize_t, preadv2,
     (int descriptor, const struct iovec *parts, int count, off_t offset, int flags))
HOOK(ssize_t, preadv64v2,
     (int descriptor, const struct iovec *parts, int count, off_t offset, int flags))
HOOK(ssize_t, sendfile, (int to, int from, off_t *offset, size_t size))
HOOK(ssize_t, sendfile64, (int to, int from, off_t *offset, size_t size))
HOOK(ssize_t, copy_file_range,
     (int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags))
HOOK(ssize_t, splice,
     (int from, off_t *from_offset, int to, off_t *to_offset, size_t size, unsigned flags))
HOOK(void *, mmap,
     (void *address, size_t length, int protection, int flags, int descriptor, off_t offset))
HOOK(void *, mmap64,
     (void *address, size_t length, int protection, int flags, int descriptor, off_t offset))
HOOK(int, madvise, (void *address, size_t length, int advice))
HOOK(int, posix_madvise, (void *address, size_t length, int advice))

/* Waiting until what was written is on storage */
HOOK(int, fsync, (int descriptor))
HOOK(int, fdatasync, (int descriptor))
HOOK(int, syncfs, (int descriptor))
HOOK(int, msync, (void *address, size_t length, int flags))
HOOK(void, sync, (void))

/* Writing to files, pipes, sockets and eventfds */
HOOK(ssize_t, write, (int descriptor, const void *buffer, size_t size))
HOOK(ssize_t, writev, (int descriptor, const struct iovec *parts, int count))
HOOK(ssize_t, pwrite, (int descriptor, const void *buffer, size_t size, off_t offset))
HOOK(ssize_t, pwrite64, (int descriptor, const void *buffer, size_t size, off_t offset))
HOOK(ssize_t, send, (int descriptor, const void *buffer, size_t size, int flags))
HOOK(ssize_t, sendto,
     (int descriptor, const void *buffer, size_t size, int flags, const void *address,
      unsigned length))
HOOK(ssize_t, sendmsg, (int descriptor, const void *message, int flags))
HOOK(int, sendmmsg, (int descriptor, void *messages, unsigned count, int flags))
HOOK(int, eventfd_write, (int descriptor, uint64_t value))
HOOK(int, eventfd_read, (int descriptor, uint64_t *value))

/* Encrypting and decrypting by OpenSSL */
HOOK(int, SSL_write, (void *connection, const void *buffer, int size))
HOOK(int, SSL_write_ex, (void *connection, const void *buffer, size_t size, size_t *written))
HOOK(int, SSL_read, (void *connection, void *buffer, int size))
HOOK(int, SSL_read_ex, (void *connection, void *buffer, size_t size, size_t *got))
HOOK(void, SSL_free, (void *connection))

/* Locks, conditions and semaphores, the ends of threads, sleeps. Structures are void, as above. */
HOOK(int, pthread_mutex_lock, (void *lock))
HOOK(int, pthread_mutex_timedlock, (void *lock, const void *until))
HOOK(int, pthread_mutex_clocklock, (void *lock, int clock, const void *until))
HOOK(int, pthread_mutex_unlock, (void *lock))
HOOK(int, pthread_rwlock_rdlock, (void *lock))
HOOK(int, pthread_rwlock_wrlock, (void *lock))
HOOK(int, pthread_rwlock_unlock, (void *lock))
HOOK(int, pthread_cond_wait, (void *condition, void *lock))
HOOK(int, pthread_cond_timedwait, (void *condition, void *lock, const void *until))
HOOK(int, pthread_cond_clockwait, (void *condition, void *lock, int clock, const void *until))
HOOK(int, pthread_cond_signal, (void *condition))
HOOK(int, pthread_cond_broadcast, (void *condition))
HOOK(int, sem_wait, (void *semaphore))
HOOK(int, sem_timedwait, (void *semaphore, const void *until))
HOOK(int, sem_clockwait, (void *semaphore, int clock, const void *until))
HOOK(int, sem_post, (void *semaphore))
HOOK(int, sem_close, (void *semaphore))
HOOK(int, pthread_join, (unsigned long thread, void **result))
HOOK(int, pthread_timedjoin_np, (unsigned long thread, void **result, const void *until))
HOOK(int, pthread_clockjoin_np, (unsigned long thread, void **result, int clock, const void *until))
HOOK(int, nanosleep, (const void *time, void *rest))
HOOK(int, clock_nanosleep, (int clock, int flags, const void *time, void *rest))
HOOK(int, usleep, (unsigned microseconds))
HOOK(unsigned, sleep, (unsigned seconds))
HOOK(int, flock, (int descriptor, int operation))
HOOK(int, lockf, (int descriptor, int operation, off_t size))
HOOK(int, lockf64, (int descriptor, int operation, off_t size))

/* Receiving from sockets, waiting for descriptors, looking up hosts */
HOOK(ssize_t, recv, (int descriptor, void *buffer, size_t size, int flags))
HOOK(ssize_t, __recv_chk, (int descriptor, void *buffer, size_t size, size_t room, int flags))
HOOK(ssize_t, recvfrom,
     (int descriptor, void *buffer, size_t size, int flags, void *address, void *length))
HOOK(ssize_t, __recvfrom_chk,
     (int descriptor, void *buffer, size_t size, size_t room, int flags, void *address,
      void *length))
HOOK(ssize_t, recvmsg, (int descriptor, void *message, int flags))
HOOK(int, recvmmsg, (int descriptor, void *messages, unsigned count, int flags, void *timeout))
HOOK(int, poll, (void *polled, unsigned long count, int timeout))
HOOK(int, __poll_chk, (void *polled, unsigned long count, int timeout, size_t room))
HOOK(int, ppoll, (void *polled, unsigned long count, const void *timeout, const void *signals))
HOOK(int, __ppoll_chk,
     (void *polled, unsigned long count, const void *timeout, const void *signals, size_t room))
HOOK(int, select, (int count, void *readable, void *writable, void *failed, void *timeout))
HOOK(int, pselect,
     (int count, void *readable, void *writable, void *failed, const void *timeout,
      const void *signals))
HOOK(int, epoll_ctl, (int descriptor, int operation, int member, void *event))
HOOK(int, epoll_wait, (int descriptor, void *events, int count, int timeout))
HOOK(int, epoll_pwait, (int descriptor, void *events, int count, int timeout, const void *signals))
HOOK(int, epoll_pwait2,
     (int descriptor, void *events, int count, const void *timeout, const void *signals))
HOOK(int, getaddrinfo, (const char *node, const char *service, const void *hints, void **found))

/* Reads that complete elsewhere, or that cannot be recorded */
HOOK(ssize_t, aio_return, (struct aiocb * request))
HOOK(ssize_t, aio_return64, (struct aiocb * request))
HOOK(int, io_submit, (void *context, long count, void **requests))
HOOK(long, syscall, (long number, ...))
HOOK(int, io_uring_queue_init, (unsigned entries, void *queue, unsigned flags))
HOOK(int, io_uring_queue_init_params, (unsigned entries, void *queue, void *parameters))
HOOK(int, io_uring_queue_init_mem,
     (unsigned entries, void *queue, void *parameters, void *memory, size_t size))
HOOK(int, io_uring_submit, (void *queue))
HOOK(int, io_uring_submit_and_wait, (void *queue, unsigned count))
HOOK(int, io_uring_submit_and_wait_timeout,
     (void *queue, void **completion, unsigned count, void *timeout, void *signals))
HOOK(int, io_uring_submit_and_get_events, (void *queue))
HOOK(int, io_uring_get_events, (void *queue))
HOOK(int, io_uring_wait_cqes,
     (void *queue, void **completion, unsigned count, void *timeout, void *signals))
HOOK(int, io_uring_wait_cqe_timeout, (void *queue, void **completion, void *timeout))
HOOK(int, __io_uring_get_cqe,
     (void *queue, void **completion, unsigned submit, unsigned count, void *signals))
HOOK(int, io_uring_enter,
     (unsigned descriptor, unsigned submit, unsigned complete, unsigned flags, void *signals))
HOOK(int, io_uring_enter2,
     (unsigned descriptor, unsigned submit, unsigned complete, unsigned flags, void *argument,
      size_t size))
HOOK(void, io_uring_queue_exit, (void *queue))
HOOK(int, io_uring_register_files, (void *queue, const int *files, unsigned count))
HOOK(int, io_uring_setup, (unsigned entries, void *parameters))

/* Metadata and folders */
HOOK(int, stat, (const char *path, void *status))
HOOK(int, stat64, (const char *path, void *status))
HOOK(int, lstat, (const char *path, void *status))
HOOK(int, lstat64, (const char *path, void *status))
HOOK(int, fstat, (int descriptor, void *status))
HOOK(int, fstat64, (int descriptor, void *status))
HOOK(int, fstatat, (int folder, const char *path, void *status, int flags))
HOOK(int, fstatat64, (int folder, const char *path, void *status, int flags))
HOOK(int, __xstat, (int version, const char *path, void *status))
HOOK(int, __xstat64, (int version, const char *path, void *status))
HOOK(int, __lxstat, (int version, const char *path, void *status))
HOOK(int, __lxstat64, (int version, const char *path, void *status))
HOOK(int, __fxstat, (int version, int descriptor, void *status))
HOOK(int, __fxstat64, (int version, int descriptor, void *status))
HOOK(int, __fxstatat, (int version, int folder, const char *path, void *status, int flags))
HOOK(int, __fxstatat64, (int version, int folder, const char *path, void *status, int flags))
HOOK(int, statx, (int folder, const char *path, int flags, unsigned mask, void *status))
HOOK(int, access, (const char *path, int mode))
HOOK(int, faccessat, (int folder, const char *path, int mode, int flags))
HOOK(void *, opendir, (const char *path))
HOOK(void *, readdir, (void *folder))
HOOK(void *, readdir64, (void *folder))
HOOK(int, closedir, (void *folder))
HOOK(int, chdir, (const char *path))
HOOK(int, fchdir, (int descriptor))

/* Prefetching and allocation */
HOOK(ssize_t, readahead, (int descriptor, off_t offset, size_t size))
HOOK(int, posix_fadvise, (int descriptor, off_t offset, off_t size, int advice))
HOOK(int, posix_fadvise64, (int descriptor, off_t offset, off_t size, int advice))
HOOK(int, fallocate, (int descriptor, int mode, off_t offset, off_t size))
HOOK(int, fallocate64, (int descriptor, int mode, off_t offset, off_t size))

/* Streams of stdio, whose reads the C library makes internally, past the hooks */
HOOK(FILE *, fopen, (const char *path, const char *mode))
HOOK(FILE *, fopen64, (const char *path, const char *mode))
HOOK(FILE *, fdopen, (int descriptor, const char *mode))
HOOK(FILE *, freopen, (const char *path, const char *mode, FILE *stream))
HOOK(FILE *, freopen64, (const char *path, const char *mode, FILE *stream))
HOOK(int, fclose, (FILE * stream))
HOOK(FILE *, popen, (const char *command, const char *mode))
HOOK(int, pclose, (FILE * stream))
HOOK(size_t, fread, (void *buffer, size_t size, size_t count, FILE *stream))
HOOK(size_t, fread_unlocked, (void *buffer, size_t size, size_t count, FILE *stream))
HOOK(size_t, __fread_chk, (void *buffer, size_t room, size_t size, size_t count, FILE *stream))
HOOK(size_t, __fread_unlocked_chk,
     (void *buffer, size_t room, size_t size, size_t count, FILE *stream))
HOOK(char *, fgets, (char *text, int size, FILE *stream))
HOOK(char *, fgets_unlocked, (char *text, int size, FILE *stream))
HOOK(char *, __fgets_chk, (char *text, size_t room, int size, FILE *stream))
HOOK(char *, __fgets_unlocked_chk, (char *text, size_t room, int size, FILE *stream))
HOOK(ssize_t, getline, (char **line, size_t *room, FILE *stream))
HOOK(ssize_t, getdelim, (char **line, size_t *room, int delimiter, FILE *stream))
HOOK(ssize_t, __getdelim, (char **line, size_t *room, int delimiter, FILE *stream))
HOOK(int, fgetc, (FILE * stream))
HOOK(int, getc, (FILE * stream))
HOOK(int, _IO_getc, (FILE * stream))
HOOK(int, fgetc_unlocked, (FILE * stream))
HOOK(int, getc_unlocked, (FILE * stream))
HOOK(int, getchar, (void))
HOOK(int, getchar_unlocked, (void))
HOOK(int, getw, (FILE * stream))
HOOK(int, __uflow, (FILE * stream))
HOOK(int, __underflow, (FILE * stream))
HOOK(int, fscanf, (FILE * stream, const char *format, ...))
HOOK(int, __isoc99_fscanf, (FILE * stream, const char *format, ...))
HOOK(int, __isoc23_fscanf, (FILE * stream, const char *format, ...))
HOOK(int, vfscanf, (FILE * stream, const char *format, va_list values))
HOOK(int, __isoc99_vfscanf, (FILE * stream, const char *format, va_list values))
HOOK(int, __isoc23_vfscanf, (FILE * stream, const char *format, va_list values))
HOOK(int, fseek, (FILE * stream, long offset, int whence))
HOOK(int, fseeko, (FILE * stream, off_t offset, int whence))
HOOK(int, fseeko64, (FILE * stream, off_t offset, int whence))
HOOK(int, fsetpos, (FILE * stream, const void *position))
HOOK(int, fsetpos64, (FILE * stream, const void *position))
HOOK(void, rewind, (FILE * stream))

/* Starting, replacing, waiting for and ending processes. vfork is in vfork.c. */
HOOK(int, execl, (const char *path, const char *first, ...))
HOOK(int, execlp, (const char *file, const char *first, ...))
HOOK(int, execle, (const char *path, const char *first, ...))
HOOK(int, execv, (const char *path, char *const *arguments))
HOOK(int, execvp, (const char *file, char *const *arguments))
HOOK(int, execve, (const char *path, char *const *arguments, char *const *environment))
HOOK(int, execvpe, (const char *file, char *const *arguments, char *const *environment))
HOOK(int, fexecve, (int descriptor, char *const *arguments, char *const *environment))
HOOK(int, posix_spawn,
     (pid_t * pid, const char *path, const void *actions, const void *attributes,
      char *const *arguments, char *const *environment))
HOOK(int, posix_spawnp,
     (pid_t * pid, const char *file, const void *actions, const void *attributes,
      char *const *arguments, char *const *environment))
HOOK(pid_t, wait, (int *status))
HOOK(pid_t, waitpid, (pid_t pid, int *status, int options))
HOOK(pid_t, wait3, (int *status, int options, struct rusage *usage))
HOOK(pid_t, wait4, (pid_t pid, int *status, int options, struct rusage *usage))
HOOK(int, waitid, (idtype_t whose, id_t id, siginfo_t *information, int options))
HOOK(int, system, (const char *command))
HOOK(void, _exit, (int status))
HOOK(void, _Exit, (int status))
HOOK(void, quick_exit, (int status))
