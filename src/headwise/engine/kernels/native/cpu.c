/* Which builds this CPU can run; compiled without their instruction sets. */
#include <string.h>

__attribute__((visibility("default"))) int headwise_runs(const char *build) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int fma = __builtin_cpu_supports("fma"), avx2 = fma && __builtin_cpu_supports("avx2");
    if (!strcmp(build, "scalar")) return fma;
    if (!strcmp(build, "avx2")) return avx2;
    return !strcmp(build, "avx512") && avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#elif defined(__aarch64__)
    return !strcmp(build, "scalar") || !strcmp(build, "neon");
#else
    (void)build;
    return 0;
#endif
}
