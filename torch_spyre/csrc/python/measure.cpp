#include "python/measure.h"

#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/device/device.h"
#include "runtime/numbers/dtypes.h"
#include "runtime/storage/storage_view.h"

namespace torch_spyre {

namespace {

void check_repeats(int repeats) { TORCH_CHECK_VALUE(repeats >= 1, "needs at least one repeat, not ", repeats); }

void check_threads(int threads) {
  constexpr int kMost = 1024;
  TORCH_CHECK_VALUE(threads >= 1 && threads <= kMost, "needs 1 to ", kMost, " threads, not ", threads);
}

// A copy between host and card takes tensors of one shape and type.
void check_tensors(const at::Tensor& on_card, const at::Tensor& on_host) {
  TORCH_CHECK_VALUE(on_host.device().is_cpu() && on_host.layout() == at::kStrided, "needs a tensor of the host");
  TORCH_CHECK_VALUE(on_card.sizes() == on_host.sizes() && on_card.scalar_type() == on_host.scalar_type(),
                    "needs tensors of one shape and type");
}

template <typename Body>
double best_seconds(int repeats, const Body& body) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

spyre::HostView host_view(const at::Tensor& tensor) {
  return {tensor.data_ptr(), host_type(tensor.scalar_type()), tensor.sizes().vec(), tensor.strides().vec(), {}};
}

// The best seconds for all threads to run `body`, from when all begin until all are done.
template <typename Body>
double best_seconds_of_threads(int threads, int repeats, const Body& body) {
  double best = 1e9;
  std::barrier together(threads);
  const auto work = [&](int thread) {
    for (int i = 0; i < repeats; ++i) {
      together.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      body(thread);
      together.arrive_and_wait();
      if (thread == 0)
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  return best;
}

// More chains than the latency of a multiply-add times the units of any machine, and no more than it has registers.
constexpr int kChains = 12;
constexpr int64_t kRounds = 1 << 20;

// Each runs kRounds rounds of kChains independent multiply-adds in registers and gives the operations of all lanes. The
// chains begin with different numbers, or compilers would run one.
double multiply_add_portable(float* out) {
  constexpr int kLanes = 4;
  float sums[kChains * kLanes];
  for (int i = 0; i < kChains * kLanes; ++i) sums[i] = *out + static_cast<float>(i);
  for (int64_t round = 0; round < kRounds; ++round)
    for (float& sum : sums) sum = sum * 0.5f + 1.0f;
  for (const float sum : sums) *out += sum;
  return 2.0 * kRounds * kChains * kLanes;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double multiply_add_avx2(float* out) {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(*out + static_cast<float>(i));
  const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
  for (int64_t round = 0; round < kRounds; ++round)
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, half, one);
  for (const __m256& sum : sums) *out += _mm256_cvtss_f32(sum);
  return 2.0 * kRounds * kChains * 8;
}

__attribute__((target("avx512f"))) double multiply_add_avx512(float* out) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(*out + static_cast<float>(i));
  const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
  for (int64_t round = 0; round < kRounds; ++round)
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, half, one);
  for (const __m512& sum : sums) *out += _mm512_cvtss_f32(sum);
  return 2.0 * kRounds * kChains * 16;
}
#endif

double multiply_add(float* out) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_add_avx512(out);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_add_avx2(out);
#endif
  return multiply_add_portable(out);
}

uint64_t sum_of(const uint64_t* from, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += from[i];
  return sum;
}

}  // namespace

double measure_multiply_add(int threads, int repeats) {
  check_threads(threads);
  check_repeats(repeats);
  struct alignas(64) Part {
    float sum = 0;
    double operations = 0;
  };
  std::vector<Part> parts(threads);
  const double best = best_seconds_of_threads(
      threads, repeats, [&](int thread) { parts[thread].operations = multiply_add(&parts[thread].sum); });
  double operations = 0;
  for (const Part& part : parts) operations += part.operations;
  return operations / best;
}

double measure_stream(int64_t bytes_read, int64_t bytes_written, int threads, int repeats) {
  check_threads(threads);
  check_repeats(repeats);
  constexpr int64_t kMost = int64_t{1} << 36;
  for (const int64_t bytes : {bytes_read, bytes_written})
    TORCH_CHECK_VALUE(bytes >= 0 && bytes <= kMost, "needs 0 to ", kMost, " bytes, not ", bytes);
  const int64_t read = bytes_read / threads / 8, written = bytes_written / threads / 8;  // words of 8 bytes
  const int64_t copied = std::min(read, written);
  struct alignas(64) Part {
    std::vector<uint64_t> from, to;
    uint64_t sum = 0;
  };
  std::vector<Part> parts(threads);
  for (Part& part : parts) part.from.assign(read, 1), part.to.assign(written, 0);
  return best_seconds_of_threads(threads, repeats, [&](int thread) {
    Part& part = parts[thread];
    std::memcpy(part.to.data(), part.from.data(), copied * 8);
    std::memset(part.to.data() + copied, 1, (written - copied) * 8);
    part.sum += sum_of(part.from.data() + copied, read - copied);
  });
}

double measure_to_card(const at::Tensor& to, const at::Tensor& from, int repeats) {
  check_repeats(repeats);
  check_tensors(to, from);
  spyre::Card& on = card(to.device().index());
  const spyre::DeviceView target = device_view(to);
  const spyre::HostView source = host_view(from);
  return best_seconds(repeats, [&] { on.to_card(target, source, 0, spyre::Card::Wait::yes); });
}

double measure_to_host(const at::Tensor& to, const at::Tensor& from, int repeats) {
  check_repeats(repeats);
  check_tensors(from, to);
  spyre::Card& on = card(from.device().index());
  const spyre::DeviceView source = device_view(from);
  const spyre::HostView target = host_view(to);
  return best_seconds(repeats, [&] { on.to_host(target, source, 0, spyre::Card::Wait::yes); });
}

double measure_launch(const std::shared_ptr<const spyre::JobPlan>& plan, int repeats) {
  check_repeats(repeats);
  spyre::Card& on = card(-1);
  const double best = best_seconds(repeats, [&] { on.launch(plan, {}, 0); });
  on.synchronize(0);
  return best;
}

}  // namespace torch_spyre
