// Includes the file ENGINE_LOOPS once for each instruction set that one binary
// has code for, each time in a namespace of its own (plain, avx2, avx512), with
//   ENGINE_TARGET        what it is called
//   ENGINE_VECTOR_BYTES  the size of a vector register
//   ENGINE_BLOCK_ROWS    rows of a block of a matrix: with two columns of
//                        vectors each, they and three more fit into the
//                        registers
// and defines ENGINE_CHOOSE(what): what is called so in the namespace that
// suits the machine. Include what the loops need before, so that it is compiled
// for any machine.

// Vectors wider than the baseline's are never passed between functions that
// were compiled apart.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace plain {
#define ENGINE_TARGET "plain"
#define ENGINE_VECTOR_BYTES 16
#define ENGINE_BLOCK_ROWS 6
#include ENGINE_LOOPS
#undef ENGINE_TARGET
#undef ENGINE_VECTOR_BYTES
#undef ENGINE_BLOCK_ROWS
}  // namespace plain

#if defined(__x86_64__)

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
#define ENGINE_TARGET "avx2"
#define ENGINE_VECTOR_BYTES 32
#define ENGINE_BLOCK_ROWS 6
#include ENGINE_LOOPS
#undef ENGINE_TARGET
#undef ENGINE_VECTOR_BYTES
#undef ENGINE_BLOCK_ROWS
}  // namespace avx2
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#ifdef __clang__
#pragma clang attribute push(                                      \
    __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")
#endif
namespace avx512 {
#define ENGINE_TARGET "avx512"
#define ENGINE_VECTOR_BYTES 64
#define ENGINE_BLOCK_ROWS 14
#include ENGINE_LOOPS
#undef ENGINE_TARGET
#undef ENGINE_VECTOR_BYTES
#undef ENGINE_BLOCK_ROWS
}  // namespace avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#define ENGINE_CHOOSE(...)                                    \
  (engine::Machine() == engine::kAvx512 ? avx512::__VA_ARGS__ \
   : engine::Machine() == engine::kAvx2 ? avx2::__VA_ARGS__   \
                                        : plain::__VA_ARGS__)

#else

#define ENGINE_CHOOSE(...) (plain::__VA_ARGS__)

#endif
