// Tensor cores on ordinary cores: the blocks of numsim/tensorcore/block.py in integers, or chains of FMAs.
// gpu/emulator.py says how codes become the words that come in here, and which rules a chip has.
#include "instruction.h"

// For i and j, the outputs of a thread; unrolled, so that what belongs to each stays in registers.
#define OUTPUTS(side) _Pragma("unroll") for (int i = 0; i < side; i++) _Pragma("unroll") for (int j = 0; j < side; j++)

#ifdef REAL // float or double, and FMA is the GPU's own
typedef REAL Operand;
typedef REAL Word;
typedef REAL Number;
struct Rules { int length; };

static __device__ Number begin(Word c, const Rules &) { return c; }
static __device__ Word end(Number x) { return x; }

template <int SIDE>
static __device__ __forceinline__ void block(Number (&sums)[SIDE][SIDE], const Operand *a, const Operand *b, int,
                                             int apart, const Rules &)
{
    OUTPUTS(SIDE)
        sums[i][j] = FMA(a[i * apart], b[j * apart], sums[i][j]);
}
#else
// An operand is exponent * 65536 + significand. So a sum of two holds the exponent of their product, and a maximum of
// such sums that of the largest: |significand| is below 2^12. NaN has significand 0, infinity 1 or -1, each with the
// exponent SPECIAL. Zero has NOTHING, so that with infinity it is above LIMIT, and with any number far below it.
typedef int Operand;
typedef unsigned Word; // FP32
enum { NOTHING = -9000, SPECIAL = 12000, LIMIT = 1000 };

struct Number {
    int significand; // in units of 2^(exponent - 23)
    int exponent;
};

struct Rules {
    int length;        // products of a block
    int instruction;   // LATE: products of an instruction, which starts from zero; c is added last
    int fraction_bits; // F
    int product_bits;  // fraction bits of a product of significands
    int floor;         // E0
    int least_c;       // exponent of c's subnormal numbers, and of d's
    int least_d;
    int bits;          // that a result keeps after its leading one, rounded to nearest or cut
    int nearest;
};

static __device__ int exponent_of(int operands) { return (operands + 0x8000) >> 16; }

static __device__ Number begin(Word c, const Rules &r)
{
    const int fraction = c & 0x7FFFFF, field = c >> 23 & 0xFF, sign = c >> 31 ? -1 : 1;
    if (field == 255)
        return {fraction ? 0 : sign, SPECIAL};
    if (!(field | fraction))
        return {0, NOTHING};
    const int exponent = max(field, 1) - 127, below = max(r.least_c - exponent, 0); // a subnormal FP16 number's
    return {sign * ((field ? fraction | 1 << 23 : fraction) >> below), exponent + below};
}

static __device__ Word end(Number x)
{
    const Word sign = x.significand < 0 ? 0x80000000 : 0, size = abs(x.significand);
    if (x.exponent > LIMIT)
        return size ? sign | 0x7F800000 : 0x7FFFFFFF;
    if (!size)
        return 0;
    const int up = min(__clz(size) - 8, x.exponent + 126); // FP16's subnormal numbers are normal in FP32
    return sign | (((x.exponent - up + 126) << 23) + (size << up)); // the leading one adds 1 to the exponent's field
}

// x * 2^left, then cut to a multiple of 2^right towards zero, in units of it.
template <class Size> static __device__ __forceinline__ long long align(int x, int left, int right)
{
    const Size size = (Size)abs(x) << left >> min(right, (int)sizeof(Size) * 8 - 1);
    return x < 0 ? -(long long)size : (long long)size;
}

// total * 2^unit as a number of `bits` fraction bits.
static __device__ Number finish(long long total, int unit, int bits, int nearest, int least)
{
    if (!total)
        return {0, NOTHING};
    const int sign = total < 0 ? -1 : 1;
    const unsigned long long size = total < 0 ? -total : total;
    int exponent = max(unit + 63 - __clzll(size), least);
    const int drop = exponent - bits - unit;
    unsigned long long kept = drop > 0 ? size >> min(drop, 63) : size << -drop;
    if (nearest && drop > 0) {
        const unsigned long long half = 1ull << min(drop - 1, 62), rest = size & (2 * half - 1);
        kept += rest > half || (rest == half && (kept & 1));
    }
    if (kept >> (bits + 1)) { // rounded up to the next power of two
        kept >>= 1;
        exponent++;
    }
    if (exponent > 1 - least)
        return {sign, SPECIAL};
    return {sign * (int)(kept << (23 - bits)), kept ? exponent : NOTHING};
}

// What NaN and infinities make of a sum: of both signs, NaN, which counts as both.
struct Specials {
    bool plus = false, minus = false;
    __device__ void see(int significand, int exponent)
    {
        plus |= exponent > LIMIT && significand >= 0;
        minus |= exponent > LIMIT && significand <= 0;
    }
    __device__ Number result() const { return {plus - minus, SPECIAL}; }
};

static __device__ int product(int a, int b) { return (short)a * (short)b; }

// One block for SIDE x SIDE outputs: a[step * k + apart * i] and b[step * k + apart * j] are factors of products k.
template <int SIDE>
static __device__ __forceinline__ void block(Number (&sums)[SIDE][SIDE], const Operand *a, const Operand *b, int step,
                                             int apart, const Rules &r)
{
    int tops[SIDE][SIDE];
    long long totals[SIDE][SIDE];
    OUTPUTS(SIDE)
        tops[i][j] = NOTHING * 65536;
    for (int k = 0; k < r.length; k++)
        OUTPUTS(SIDE)
            tops[i][j] = max(tops[i][j], a[step * k + apart * i] + b[step * k + apart * j]);
    const int up_c = max(r.fraction_bits - 23, 0), down_c = max(23 - r.fraction_bits, 0);
    OUTPUTS(SIDE) {
        const Number c = sums[i][j];
        tops[i][j] = max(max(exponent_of(tops[i][j]), c.exponent), r.floor);
        totals[i][j] = align<TERM>(c.significand, up_c, tops[i][j] - c.exponent + down_c);
    }
    const int up = max(r.fraction_bits - r.product_bits, 0), down = max(r.product_bits - r.fraction_bits, 0);
    for (int k = 0; k < r.length; k += GROUP) // products that are added exactly, and are one term
        OUTPUTS(SIDE) {
            int sum = 0, top = NOTHING * 65536;
            for (int g = k; g < k + GROUP; g++) {
                const int x = a[step * g + apart * i], y = b[step * g + apart * j];
                sum += product(x, y);
                top = max(top, x + y);
            }
            totals[i][j] += align<TERM>(sum, up, tops[i][j] - exponent_of(top) + down);
        }
    OUTPUTS(SIDE) {
        if (tops[i][j] <= LIMIT) {
            sums[i][j] = finish(totals[i][j], tops[i][j] - r.fraction_bits, r.bits, r.nearest, r.least_d);
            continue;
        }
        Specials all;
        all.see(sums[i][j].significand, sums[i][j].exponent);
        for (int k = 0; k < r.length; k++) {
            const int x = a[step * k + apart * i], y = b[step * k + apart * j];
            all.see(product(x, y), exponent_of(x + y));
        }
        sums[i][j] = all.result();
    }
}

// The sum of two numbers, rounded to the nearest of d's format. Of a term 27 places below the other nothing but its
// sign could matter, and that only where the other is halfway between two numbers, which it is not.
static __device__ Number plus(Number x, Number y, const Rules &r)
{
    const int top = max(x.exponent, y.exponent), bits = r.least_d == -14 ? 10 : 23;
    if (top <= LIMIT) {
        const long long total = align<unsigned long long>(x.significand, 27, top - x.exponent) +
                                align<unsigned long long>(y.significand, 27, top - y.exponent);
        return finish(total, top - 50, bits, 1, r.least_d);
    }
    Specials all;
    all.see(x.significand, x.exponent);
    all.see(y.significand, y.exponent);
    return all.result();
}
#endif

// One block more, from product `at` of the chain on. LATE: `inner` starts from zero with every instruction.
template <int SIDE>
static __device__ __forceinline__ void add(Number (&sums)[SIDE][SIDE], Number (&inner)[SIDE][SIDE], const Operand *a,
                                           const Operand *b, int step, int apart, int at, const Rules &r)
{
#ifdef LATE
    const bool first = at % r.instruction == 0, last = (at + r.length) % r.instruction == 0;
    if (first)
        OUTPUTS(SIDE)
            inner[i][j] = {0, NOTHING};
    block(inner, a, b, step, apart, r);
    if (last)
        OUTPUTS(SIDE)
            sums[i][j] = plus(sums[i][j], inner[i][j], r);
#else
    block(sums, a, b, step, apart, r);
#endif
}

// a (batch, m, depth), b (batch, n, depth), c and d (batch, m, n). The grid is (tiles of d, batch); a block of threads
// computes a tile of TILE x TILE, and each thread EACH x EACH outputs of it, EDGE apart.
#define TILE (EDGE * EACH)
extern "C" __global__ void __launch_bounds__(EDGE *EDGE)
    products(const Operand *a, const Operand *b, const Word *c, const Rules *rules, Word *d, int m, int n, int depth)
{
    __shared__ Operand left[DEPTH][TILE + 1], right[DEPTH][TILE + 1]; // the odd length keeps banks apart
    const Rules r = *rules;
    const int thread = threadIdx.x, across = (n + TILE - 1) / TILE, tile = blockIdx.x;
    const int top = tile / across * TILE, first = tile % across * TILE; // row and column of the tile
    const int row = thread / EDGE, column = thread % EDGE;
    const size_t batch = blockIdx.y;
    a += batch * m * depth, b += batch * n * depth, c += batch * m * n, d += batch * m * n;
    Number sums[EACH][EACH], inner[EACH][EACH];
    OUTPUTS(EACH) {
        const int y = top + row + EDGE * i, x = first + column + EDGE * j;
        sums[i][j] = begin(y < m && x < n ? c[(size_t)y * n + x] : Word(0), r);
    }
    const int panel = DEPTH / r.length * r.length; // whole blocks
    for (int from = 0; from < depth; from += panel) {
        const int width = min(panel, depth - from);
        __syncthreads(); // the last panel has been read
        for (int i = thread; i < TILE * DEPTH; i += EDGE * EDGE) {
            const int line = i / DEPTH, k = i % DEPTH;
            if (k >= width)
                continue;
            left[k][line] = top + line < m ? a[(size_t)(top + line) * depth + from + k] : Operand(0);
            right[k][line] = first + line < n ? b[(size_t)(first + line) * depth + from + k] : Operand(0);
        }
        __syncthreads();
        for (int k = 0; k < width; k += r.length)
            add(sums, inner, &left[k][row], &right[k][column], TILE + 1, EDGE, from + k, r);
    }
    OUTPUTS(EACH) {
        const int y = top + row + EDGE * i, x = first + column + EDGE * j;
        if (y < m && x < n)
            d[(size_t)y * n + x] = end(sums[i][j]);
    }
}

// a and b (count, depth), c and d (count): a thread for every output.
extern "C" __global__ void dots(const Operand *a, const Operand *b, const Word *c, const Rules *rules, Word *d,
                                int count, int depth)
{
    const Rules r = *rules;
    const size_t output = (size_t)blockIdx.x * EDGE * EDGE + threadIdx.x;
    if (output >= count)
        return;
    a += output * depth, b += output * depth;
    Number sum[1][1] = {{begin(c[output], r)}}, inner[1][1];
    for (int k = 0; k < depth; k += r.length)
        add(sum, inner, a + k, b + k, 1, 0, k, r);
    d[output] = end(sum[0][0]);
}
