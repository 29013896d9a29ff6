// scale for hip:gfx950; its code is in scale_gfx950.hsaco
#ifndef TILEC_SCALE_H
#define TILEC_SCALE_H
#include <stdbool.h>
#include <stdint.h>

#define scale_SYMBOL "scale"
#define scale_THREADS 128
#define scale_SHARED_BYTES 0
#define scale_PARAMS 7

// params[i] points to:
//   0: void * to the first element of X
//   1: void * to the first element of Y
//   2: float factor
//   3: int32_t, extent 0 of X
//   4: int32_t, extent 1 of X
//   5: int64_t, stride 0 of X in elements
//   6: int64_t, stride 0 of Y in elements

#ifndef TILEC_ARITHMETIC
#define TILEC_ARITHMETIC
static inline int64_t tilec_floordiv(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t tilec_mod(int64_t a, int64_t b) {
    return a - tilec_floordiv(a, b) * b;
}
static inline int64_t tilec_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tilec_max(int64_t a, int64_t b) { return a < b ? b : a; }
static inline int64_t tilec_abs(int64_t a) { return a < 0 ? -a : a; }
#endif
static inline void scale_grid(int64_t M, int64_t N, int64_t grid[3]) {
    grid[0] = tilec_floordiv((N + 255), 256);
    grid[1] = M;
    grid[2] = 1;
}

#endif
