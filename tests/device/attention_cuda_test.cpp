// The claims of the CUDA attention kernels that the case table of every backend does not reach:
// page layouts, shards, both decode machines, graphs, and every cut of the work. Shapes cover each
// query group and head size of rlk.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "device/harness.h"

namespace rlk::test {
namespace {

struct Heads {
  int H, KH, Dh;
  std::string text() const {
    return "H " + std::to_string(H) + " KH " + std::to_string(KH) + " Dh " + std::to_string(Dh);
  }
};
const std::vector<Heads> kHeads = {{2, 2, 128}, {4, 2, 128}, {3, 1, 128}, {8, 2, 128},
                                   {5, 1, 128}, {8, 1, 128}, {4, 2, 64},  {16, 2, 64}};

// Whole sequences one after another, [S, heads, Dh]. `peak` scales the scores: 1 is ordinary, 6
// moves the running maximum often.
struct Problem {
  Heads h;
  std::vector<int32_t> begin;
  std::vector<bf16> q, k, v, d_o;
  float scale;

  Problem(const Heads& heads, const std::vector<int>& lengths, float peak = 1.f, uint64_t seed = 1)
      : h(heads), begin(1, 0), scale(1.f / std::sqrt(static_cast<float>(heads.Dh))) {
    for (int n : lengths) begin.push_back(begin.back() + n);
    Random random(seed);
    q = random.bf16s(rows(h.H), peak);
    k = random.bf16s(rows(h.KH));
    v = random.bf16s(rows(h.KH));
    d_o = random.bf16s(rows(h.H));
  }
  int sequences() const { return static_cast<int>(begin.size()) - 1; }
  int length(int s) const {
    return begin[static_cast<size_t>(s) + 1] - begin[static_cast<size_t>(s)];
  }
  int first(int s) const { return begin[static_cast<size_t>(s)]; }
  int S() const { return begin.back(); }
  int longest() const {
    int n = 0;
    for (int s = 0; s < sequences(); ++s) n = std::max(n, length(s));
    return n;
  }
  size_t rows(int heads) const {
    return static_cast<size_t>(S()) * static_cast<size_t>(heads) * static_cast<size_t>(h.Dh);
  }
};

template <class T>
void copy_row(std::vector<T>& to, int64_t to_row, const std::vector<T>& from, int64_t from_row,
              int64_t n) {
  std::copy_n(from.begin() + from_row * n, n, to.begin() + to_row * n);
}

// ---- Caches ----------------------------------------------------------------------------------

struct Layout {
  std::string name;
  int page_size = kKvPageSize;
  bool token_major = false;
  bool plain = false;  // rows as they are: page_stride == token_stride
  int shards = 1;
};

// K and V in shuffled pages; everything that is not a key of a sequence is NaN.
class Cache {
 public:
  Cache(const Ops& ops, const Problem& p, const Layout& l) {
    const int64_t row = int64_t{p.h.KH} * p.h.Dh;
    c_.page_size = l.page_size;
    c_.token_stride = l.plain || l.token_major ? row : p.h.Dh;
    c_.head_stride = l.plain || l.token_major ? p.h.Dh : int64_t{l.page_size} * p.h.Dh;
    c_.page_stride = l.plain ? row : l.page_size * row;
    c_.max_pages = (p.longest() + l.page_size - 1) / l.page_size + 1;
    const int per_sequence = c_.max_pages - 1;
    const int pages = (per_sequence * p.sequences() + l.shards - 1) / l.shards;
    const int64_t size = l.plain ? (p.S() + l.page_size) * row : pages * c_.page_stride;
    const bf16 nan{0x7fc1};
    std::vector<std::vector<bf16>> k(static_cast<size_t>(l.shards),
                                     std::vector<bf16>(static_cast<size_t>(size), nan));
    std::vector<std::vector<bf16>> v = k;
    std::vector<int> order(static_cast<size_t>(pages * l.shards));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(7));
    std::vector<int32_t> table(static_cast<size_t>(p.sequences() * c_.max_pages), 0x7fffffff);
    for (int s = 0, next = 0; s < p.sequences(); ++s)
      for (int at = 0; at < p.length(s); at += l.page_size) {
        const int id = l.plain ? p.first(s) + at : order[static_cast<size_t>(next++)];
        const int shard = l.plain ? 0 : id % l.shards, page = l.plain ? id : id / l.shards;
        table[static_cast<size_t>(s * c_.max_pages + at / l.page_size)] = (shard << 24) | page;
        for (int i = 0; i < std::min(l.page_size, p.length(s) - at); ++i)
          for (int h = 0; h < p.h.KH; ++h) {
            const auto to = static_cast<size_t>(page * c_.page_stride + i * c_.token_stride +
                                                h * c_.head_stride);
            const auto from =
                static_cast<size_t>((p.first(s) + at + i) * row + int64_t{h} * p.h.Dh);
            std::copy_n(p.k.begin() + static_cast<int64_t>(from), p.h.Dh,
                        k[static_cast<size_t>(shard)].begin() + static_cast<int64_t>(to));
            std::copy_n(p.v.begin() + static_cast<int64_t>(from), p.h.Dh,
                        v[static_cast<size_t>(shard)].begin() + static_cast<int64_t>(to));
          }
      }
    for (size_t i = 0; i < k.size(); ++i) {
      memory_.emplace_back(ops, k[i]);
      c_.k[i] = memory_.back().data();
      memory_.emplace_back(ops, v[i]);
      c_.v[i] = memory_.back().data();
    }
    table_.emplace_back(ops, table);
    c_.page_table = table_.back().data();
  }
  const KvCache& get() const { return c_; }

 private:
  KvCache c_{};
  std::vector<DeviceArray<bf16>> memory_;
  std::vector<DeviceArray<int32_t>> table_;
};

// ---- Running ---------------------------------------------------------------------------------

// Results per row of the problem, whatever the segments were.
struct Forward {
  std::vector<bf16> o;
  std::vector<float> lse;
};

std::vector<AttentionSegment> whole(const Problem& p) {
  std::vector<AttentionSegment> out;
  for (int s = 0; s < p.sequences(); ++s) out.push_back({s, 0, p.length(s), 0});
  return out;
}

// Every sequence cut at random places, pieces shuffled.
std::vector<AttentionSegment> cut(const Problem& p, uint64_t seed, int longest) {
  Random random(seed);
  std::vector<AttentionSegment> out;
  for (int s = 0; s < p.sequences(); ++s)
    for (int at = 0; at < p.length(s);) {
      const int n = std::min<int>(p.length(s) - at, 1 + static_cast<int>(random.below(longest)));
      out.push_back({s, at, n, 0});
      at += n;
    }
  std::shuffle(out.begin(), out.end(), std::mt19937_64(seed));
  return out;
}

int place_rows(std::vector<AttentionSegment>& segments) {
  int T = 0;
  for (AttentionSegment& s : segments) {
    s.row = T;
    T += s.len;
  }
  return T;
}

// Rows of segments in `out` are filled, others left alone.
void run_forward(const Ops& ops, const Problem& p, const KvCache& cache,
                 std::vector<AttentionSegment> segments, Forward& out) {
  const int T = place_rows(segments);
  const int64_t n = int64_t{p.h.H} * p.h.Dh;
  std::vector<bf16> q(static_cast<size_t>(T * n));
  AttentionArgs a{};
  for (const AttentionSegment& s : segments) {
    for (int i = 0; i < s.len; ++i) copy_row(q, s.row + i, p.q, p.first(s.seq) + s.position + i, n);
    a.max_len = std::max(a.max_len, s.len);
    a.max_context = std::max(a.max_context, s.position + s.len);
  }
  const DeviceArray<bf16> q_device(ops, q);
  const DeviceArray<AttentionSegment> segments_device(ops, segments);
  DeviceArray<bf16> o(ops, q.size());
  DeviceArray<float> lse(ops, static_cast<size_t>(T * p.h.H));
  a.q = q_device.data();
  a.cache = cache;
  a.segments = segments_device.data();
  a.n_segments = static_cast<int32_t>(segments.size());
  a.o = o.data();
  a.lse = lse.data();
  a.T = T;
  a.H = p.h.H;
  a.KH = p.h.KH;
  a.Dh = p.h.Dh;
  a.scale = p.scale;
  DeviceArray<char> workspace(ops, ops.attention_workspace(a));
  a.workspace = workspace.data();
  ops.attention(nullptr, a);
  ops.synchronize(nullptr);
  out.o.resize(p.q.size());
  out.lse.resize(static_cast<size_t>(p.S() * p.h.H));
  const std::vector<bf16> o_host = o.host();
  const std::vector<float> lse_host = lse.host();
  for (const AttentionSegment& s : segments)
    for (int i = 0; i < s.len; ++i) {
      copy_row(out.o, p.first(s.seq) + s.position + i, o_host, s.row + i, n);
      copy_row(out.lse, p.first(s.seq) + s.position + i, lse_host, s.row + i, p.h.H);
    }
  workspace.host();  // checks its guards
}

Forward run_forward(const Ops& ops, const Problem& p, const KvCache& cache,
                    const std::vector<AttentionSegment>& segments) {
  Forward out;
  run_forward(ops, p, cache, segments, out);
  return out;
}

// What both passes read, on the device; o, lse and delta come from the ops themselves.
struct BackwardInputs {
  DeviceArray<bf16> q, k, v, d_o, o;
  DeviceArray<float> lse, delta;
  DeviceArray<int32_t> begin;

  BackwardInputs(const Ops& ops, const Problem& p, const Forward& f)
      : q(ops, p.q),
        k(ops, p.k),
        v(ops, p.v),
        d_o(ops, p.d_o),
        o(ops, f.o),
        lse(ops, f.lse),
        delta(ops, f.lse.size()),
        begin(ops, p.begin) {
    ops.attention_delta(nullptr, {o.data(), d_o.data(), delta.data(), p.S(), p.h.H, p.h.Dh});
  }
};

struct Gradients {
  std::vector<bf16> dq, dk, dv;  // per row of the problem
};

Gradients run_backward(const Ops& ops, const Problem& p, const BackwardInputs& in,
                       std::vector<AttentionSegment> segments) {
  const int T = place_rows(segments);
  const int64_t n = int64_t{p.h.H} * p.h.Dh, kn = int64_t{p.h.KH} * p.h.Dh;
  const DeviceArray<AttentionSegment> segments_device(ops, segments);
  DeviceArray<bf16> dq(ops, static_cast<size_t>(T * n)), dk(ops, static_cast<size_t>(T * kn)),
      dv(ops, static_cast<size_t>(T * kn));
  AttentionBwdArgs a{};
  a.q = in.q.data();
  a.k = in.k.data();
  a.v = in.v.data();
  a.d_o = in.d_o.data();
  a.lse = in.lse.data();
  a.delta = in.delta.data();
  a.seq_begin = in.begin.data();
  a.segments = segments_device.data();
  a.n_segments = static_cast<int32_t>(segments.size());
  a.max_len = a.max_context = p.longest();
  a.dq = dq.data();
  a.dk = dk.data();
  a.dv = dv.data();
  a.S = p.S();
  a.H = p.h.H;
  a.KH = p.h.KH;
  a.Dh = p.h.Dh;
  a.scale = p.scale;
  DeviceArray<char> workspace(ops, ops.attention_bwd_workspace(a));
  a.workspace = workspace.data();
  ops.attention_bwd_dq(nullptr, a);
  ops.attention_bwd_dkv(nullptr, a);
  ops.synchronize(nullptr);
  Gradients out{std::vector<bf16>(p.q.size()), std::vector<bf16>(p.k.size()),
                std::vector<bf16>(p.k.size())};
  const auto dq_host = dq.host(), dk_host = dk.host(), dv_host = dv.host();
  for (const AttentionSegment& s : segments)
    for (int i = 0; i < s.len; ++i) {
      const int64_t to = p.first(s.seq) + s.position + i;
      copy_row(out.dq, to, dq_host, s.row + i, n);
      copy_row(out.dk, to, dk_host, s.row + i, kn);
      copy_row(out.dv, to, dv_host, s.row + i, kn);
    }
  workspace.host();
  return out;
}

// ---- fp64 reference --------------------------------------------------------------------------

struct Reference {
  std::vector<double> o, lse, dq, dk, dv;
};

Reference reference(const Problem& p) {
  const std::vector<double> q = values(p.q), k = values(p.k), v = values(p.v), d_o = values(p.d_o);
  const int H = p.h.H, KH = p.h.KH, Dh = p.h.Dh, group = H / KH;
  Reference r{std::vector<double>(q.size()), std::vector<double>(static_cast<size_t>(p.S() * H)),
              std::vector<double>(q.size()), std::vector<double>(k.size()),
              std::vector<double>(k.size())};
  std::vector<double> prob(static_cast<size_t>(p.longest()));
  const auto dot = [&](const double* x, const double* y) {
    double sum = 0;
    for (int d = 0; d < Dh; ++d) sum += x[d] * y[d];
    return sum;
  };
  for (int s = 0; s < p.sequences(); ++s)
    for (int h = 0; h < H; ++h)
      for (int i = 0; i < p.length(s); ++i) {
        const auto q_at = static_cast<size_t>(((p.first(s) + i) * H + h) * Dh);
        const auto k_at = [&](int j) {
          return static_cast<size_t>(((p.first(s) + j) * KH + h / group) * Dh);
        };
        double top = -1e300, sum = 0;
        for (int j = 0; j <= i; ++j) {
          prob[static_cast<size_t>(j)] = static_cast<double>(p.scale) * dot(&q[q_at], &k[k_at(j)]);
          top = std::max(top, prob[static_cast<size_t>(j)]);
        }
        for (int j = 0; j <= i; ++j)
          sum += prob[static_cast<size_t>(j)] = std::exp(prob[static_cast<size_t>(j)] - top);
        r.lse[static_cast<size_t>((p.first(s) + i) * H + h)] =
            (top + std::log(sum)) / std::log(2.0);
        for (int j = 0; j <= i; ++j) {
          const double w = prob[static_cast<size_t>(j)] /= sum;
          for (int d = 0; d < Dh; ++d)
            r.o[q_at + static_cast<size_t>(d)] += w * v[k_at(j) + static_cast<size_t>(d)];
        }
        const double delta = dot(&r.o[q_at], &d_o[q_at]);
        for (int j = 0; j <= i; ++j) {
          const double w = prob[static_cast<size_t>(j)];
          const double ds =
              w * (dot(&d_o[q_at], &v[k_at(j)]) - delta) * static_cast<double>(p.scale);
          for (int d = 0; d < Dh; ++d) {
            const auto e = static_cast<size_t>(d);
            r.dv[k_at(j) + e] += w * d_o[q_at + e];
            r.dk[k_at(j) + e] += ds * q[q_at + e];
            r.dq[q_at + e] += ds * k[k_at(j) + e];
          }
        }
      }
  return r;
}

// |got - want| / |want|.
double relative_error(const std::vector<bf16>& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (value(got[i]) - want[i]) * (value(got[i]) - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);  // NaN where anything is
}

class AttentionCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ops_ = backend_ops("cuda", &why);
    if (ops_ != nullptr) return;
    if (std::getenv("RLK_REQUIRE_CUDA")) FAIL() << "RLK_REQUIRE_CUDA is set: " << why;
    GTEST_SKIP() << why;
  }
  const Ops& ops() const { return *ops_; }
  void check(const std::string& what, const Forward& a, const Forward& b) const {
    EXPECT_TRUE(same_bits(what + " o", a.o, b.o));
    EXPECT_TRUE(same_bits(what + " lse", a.lse, b.lse));
  }
  void check(const std::string& what, const Gradients& a, const Gradients& b) const {
    EXPECT_TRUE(same_bits(what + " dq", a.dq, b.dq));
    EXPECT_TRUE(same_bits(what + " dk", a.dk, b.dk));
    EXPECT_TRUE(same_bits(what + " dv", a.dv, b.dv));
  }

 private:
  const Ops* ops_ = nullptr;
};

const std::vector<int> kShort = {1, 3, 64, 127, 130, 200};
const std::vector<int> kLong = {1, 129, 1024, 1100, 2240, 515};

// ---- Claims ----------------------------------------------------------------------------------

TEST_F(AttentionCuda, IsCloseToFp64) {
  // bf16 probabilities and results (2^-9 relative each) give 2e-3; dS is rounded too.
  for (const Heads& h : kHeads)
    for (float peak : {1.f, 6.f}) {
      const Problem p(h, kShort, peak);
      const Reference want = reference(p);
      const Cache cache(ops(), p, {"pages"});
      const Forward f = run_forward(ops(), p, cache.get(), whole(p));
      const std::string what = h.text() + " peak " + std::to_string(peak);
      const double error = relative_error(f.o, want.o);
      EXPECT_LT(error, 4e-3) << what;
      EXPECT_TRUE(close_to(what + " lse", f.lse, want.lse, {2e-5, 1.0}));
      const BackwardInputs in(ops(), p, f);
      const Gradients g = run_backward(ops(), p, in, whole(p));
      const double dq = relative_error(g.dq, want.dq), dk = relative_error(g.dk, want.dk),
                   dv = relative_error(g.dv, want.dv);
      EXPECT_LT(dq, 1e-2) << what;
      EXPECT_LT(dk, 1e-2) << what;
      EXPECT_LT(dv, 6e-3) << what;
      std::printf("%-36s o %.2e dq %.2e dk %.2e dv %.2e\n", what.c_str(), error, dq, dk, dv);
    }
}

TEST_F(AttentionCuda, PageLayoutAndShardsChangeNothing) {
  for (const Heads& h : {Heads{8, 2, 128}, Heads{4, 2, 64}}) {
    const Problem p(h, kLong);
    const Cache first(ops(), p, {"pages"});
    const Forward want = run_forward(ops(), p, first.get(), whole(p));
    for (const Layout& l :
         {Layout{"pages of 64", 64}, Layout{"pages of 32", 32}, Layout{"pages of 16", 16},
          Layout{"token-major", 128, true}, Layout{"token-major pages of 16", 16, true},
          Layout{"plain rows", 128, true, true}, Layout{"plain rows by 16", 16, true, true},
          Layout{"8 shards", 128, false, false, 8},
          Layout{"3 shards of 64", 64, false, false, 3}}) {
      const Cache cache(ops(), p, l);
      check(h.text() + " " + l.name, want, run_forward(ops(), p, cache.get(), whole(p)));
      std::vector<AttentionSegment> last;
      for (int s = 0; s < p.sequences(); ++s) last.push_back({s, p.length(s) - 1, 1, 0});
      Forward decoded = want;
      run_forward(ops(), p, cache.get(), last, decoded);
      check(h.text() + " decode " + l.name, want, decoded);
    }
  }
}

TEST_F(AttentionCuda, ChunksAreTheWhole) {
  for (const Heads& h : kHeads) {
    const Problem p(h, kLong, 3.f);
    const Cache cache(ops(), p, {"pages"});
    const Forward want = run_forward(ops(), p, cache.get(), whole(p));
    for (int longest : {7, 100, 700})
      check(h.text() + " pieces up to " + std::to_string(longest), want,
            run_forward(ops(), p, cache.get(), cut(p, 3, longest)));
    check(h.text() + " again", want, run_forward(ops(), p, cache.get(), whole(p)));
  }
}

TEST_F(AttentionCuda, SequenceAloneIsSequenceInBatch) {
  const Problem p({8, 2, 128}, kLong);
  const Cache cache(ops(), p, {"pages"});
  const Forward want = run_forward(ops(), p, cache.get(), whole(p));
  Forward alone = want;
  for (int s = 0; s < p.sequences(); ++s)
    run_forward(ops(), p, cache.get(), {{s, 0, p.length(s), 0}}, alone);
  check("alone", want, alone);
}

// Positions around tile and split ends, in batches that use one machine an SM and two.
TEST_F(AttentionCuda, DecodeIsPrefill) {
  for (const Heads& h : kHeads) {
    const Problem p(h, kLong, 3.f);
    const Cache cache(ops(), p, {"pages"});
    const Forward want = run_forward(ops(), p, cache.get(), whole(p));
    std::vector<AttentionSegment> all;
    for (int s = 0; s < p.sequences(); ++s)
      for (int at = 0; at < p.length(s); ++at)
        if (at % 128 < 2 || at % 128 > 125 || at % 41 == 0 || at + 2 > p.length(s))
          all.push_back({s, at, 1, 0});
    for (size_t batch : {size_t{1}, size_t{3}, all.size()}) {
      Forward decoded = want;
      const size_t step = batch == 1 ? 37 : batch;
      for (size_t i = 0; i + batch <= all.size(); i += step * (batch == 3 ? 5 : 1)) {
        std::vector<AttentionSegment> some(all.begin() + static_cast<int64_t>(i),
                                           all.begin() + static_cast<int64_t>(i + batch));
        some.push_back({0, 5, 0, 0});  // an idle slot
        run_forward(ops(), p, cache.get(), some, decoded);
      }
      check(h.text() + " decode in batches of " + std::to_string(batch), want, decoded);
    }
  }
}

// One captured call; lengths, positions and page tables change between replays. Two calls in a row
// in the graph also overlap by programmatic dependent launch.
TEST_F(AttentionCuda, GraphReplaysReadNewSegments) {
  const Problem p({8, 2, 128}, kLong);
  const Cache cache(ops(), p, {"pages"});
  const Forward want = run_forward(ops(), p, cache.get(), whole(p));
  const int64_t n = int64_t{p.h.H} * p.h.Dh;
  constexpr int kSlots = 6;
  const DeviceArray<bf16> q(ops(), std::vector<bf16>(static_cast<size_t>(kSlots * n)));
  DeviceArray<AttentionSegment> segments(ops(), std::vector<AttentionSegment>(kSlots));
  for (bool past_ready : {false, true}) {
    DeviceArray<bf16> o(ops(), q.size()), o2(ops(), q.size());
    AttentionArgs a{};
    a.q = q.data();
    a.cache = cache.get();
    a.segments = segments.data();
    a.n_segments = kSlots;
    a.max_len = 1;
    a.max_context = p.longest();
    a.o = o.data();
    a.T = kSlots;
    a.H = p.h.H;
    a.KH = p.h.KH;
    a.Dh = p.h.Dh;
    a.scale = p.scale;
    a.past_ready = past_ready;
    DeviceArray<char> workspace(ops(), ops().attention_workspace(a));
    a.workspace = workspace.data();
    const Stream stream = ops().stream_create();
    ops().capture_begin(stream);
    ops().attention(stream, a);
    a.o = o2.data();
    ops().attention(stream, a);
    const Graph graph = ops().capture_end(stream);
    for (int replay = 0; replay < 20; ++replay) {
      std::vector<AttentionSegment> now(kSlots);
      std::vector<bf16> rows(static_cast<size_t>(kSlots * n));
      for (int s = 0; s < kSlots; ++s) {
        const int position = (replay * 331 + s * 97) % p.length(s);
        now[static_cast<size_t>(s)] = {s, position, (replay + s) % 5 == 4 ? 0 : 1, s};
        copy_row(rows, s, p.q, p.first(s) + position, n);
      }
      segments.set(now);
      const_cast<DeviceArray<bf16>&>(q).set(rows);
      ops().graph_launch(stream, graph);
      ops().synchronize(stream);
      const std::vector<bf16> got = o.host(), got2 = o2.host();
      EXPECT_TRUE(same_bits("two calls of one graph", got, got2));
      for (const AttentionSegment& s : now) {
        if (s.len == 0) continue;
        std::vector<bf16> one(static_cast<size_t>(n)), row(static_cast<size_t>(n));
        copy_row(one, 0, got, s.row, n);
        copy_row(row, 0, want.o, p.first(s.seq) + s.position, n);
        EXPECT_TRUE(same_bits("replay " + std::to_string(replay), row, one));
      }
    }
    ops().graph_destroy(graph);
    ops().stream_destroy(stream);
  }
}

TEST_F(AttentionCuda, BackwardRowsDoNotDependOnTheCut) {
  for (const Heads& h : kHeads) {
    const Problem p(h, {1, 129, 700, 64, 1030}, 2.f);
    const Cache cache(ops(), p, {"pages"});
    const BackwardInputs in(ops(), p, run_forward(ops(), p, cache.get(), whole(p)));
    const Gradients want = run_backward(ops(), p, in, whole(p));
    for (int longest : {9, 100, 400})
      check(h.text() + " pieces up to " + std::to_string(longest), want,
            run_backward(ops(), p, in, cut(p, 5, longest)));
    check(h.text() + " again", want, run_backward(ops(), p, in, whole(p)));
  }
}

TEST_F(AttentionCuda, BackwardOfASequenceAloneIsTheBatchs) {
  const Heads h{8, 2, 128};
  const Problem p(h, {200, 129, 700});
  const Cache cache(ops(), p, {"pages"});
  const Forward f = run_forward(ops(), p, cache.get(), whole(p));
  const Gradients want = run_backward(ops(), p, BackwardInputs(ops(), p, f), whole(p));
  for (int s = 0; s < p.sequences(); ++s) {
    Problem one(h, {p.length(s)});
    Forward of;
    const auto take = [&](auto& to, const auto& from, int64_t n) {
      to.resize(static_cast<size_t>(p.length(s) * n));
      for (int i = 0; i < p.length(s); ++i) copy_row(to, i, from, p.first(s) + i, n);
    };
    const int64_t n = int64_t{h.H} * h.Dh, kn = int64_t{h.KH} * h.Dh;
    take(one.q, p.q, n);
    take(one.k, p.k, kn);
    take(one.v, p.v, kn);
    take(one.d_o, p.d_o, n);
    take(of.o, f.o, n);
    take(of.lse, f.lse, h.H);
    Gradients part;
    take(part.dq, want.dq, n);
    take(part.dk, want.dk, kn);
    take(part.dv, want.dv, kn);
    check("sequence " + std::to_string(s), part,
          run_backward(ops(), one, BackwardInputs(ops(), one, of), whole(one)));
  }
}

// The comparisons can fail: a key one position further on changes the row.
TEST_F(AttentionCuda, OneKeyMoreIsSeen) {
  const Problem p({4, 2, 128}, {1030});
  const Cache cache(ops(), p, {"pages"});
  Forward a = run_forward(ops(), p, cache.get(), whole(p)), b = a;
  Problem moved = p;
  copy_row(moved.q, 1023, p.q, 1024, int64_t{p.h.H} * p.h.Dh);
  run_forward(ops(), moved, cache.get(), {{0, 1023, 1, 0}}, b);
  EXPECT_GE(first_difference(a.o, b.o), 0);
}

// Every kernel on little work, both head sizes: what compute-sanitizer is run on.
TEST_F(AttentionCuda, SmallCasesRunAlike) {
  for (const Heads& h : {Heads{4, 1, 128}, Heads{2, 1, 64}}) {
    const Problem p(h, {1, 130, 200});
    const Cache cache(ops(), p, {"pages"});
    const Forward f = run_forward(ops(), p, cache.get(), whole(p));
    check(h.text(), f, run_forward(ops(), p, cache.get(), cut(p, 3, 90)));
    Forward decoded = f;
    run_forward(ops(), p, cache.get(), {{0, 0, 1, 0}, {1, 129, 1, 0}, {2, 60, 1, 0}}, decoded);
    check(h.text() + " decode", f, decoded);
    const BackwardInputs in(ops(), p, f);
    check(h.text(), run_backward(ops(), p, in, whole(p)),
          run_backward(ops(), p, in, cut(p, 3, 90)));
  }
  // More items than decode shares between CTAs.
  const Problem many({4, 1, 128}, std::vector<int>(20, 3));
  const Cache cache_of_many(ops(), many, {"pages"});
  const Forward all = run_forward(ops(), many, cache_of_many.get(), whole(many));
  std::vector<AttentionSegment> last;
  for (int s = 0; s < 20; ++s) last.push_back({s, 2, 1, 0});
  Forward decoded = all;
  run_forward(ops(), many, cache_of_many.get(), last, decoded);
  check("many", all, decoded);
  // Several splits, so that partial results are published and merged.
  const Problem p({4, 1, 128}, {1030});
  const Cache cache(ops(), p, {"pages"});
  const Forward f = run_forward(ops(), p, cache.get(), {{0, 1029, 1, 0}});
  check("splits", f, run_forward(ops(), p, cache.get(), {{0, 1029, 1, 0}}));
}

TEST_F(AttentionCuda, RefusesWhatItCannotDo) {
  const Problem p({4, 2, 128}, {40});
  const Cache cache(ops(), p, {"pages"});
  const auto refused = [&](auto change) {
    Problem wrong = p;
    KvCache c = cache.get();
    change(wrong.h, c);
    EXPECT_THROW(run_forward(ops(), wrong, c, whole(p)), Error);
  };
  refused([](Heads&, KvCache& c) { c.page_size = 24; });
  refused([](Heads&, KvCache& c) { c.token_stride = 132; });
  refused([](Heads& h, KvCache&) { h = {4, 2, 96}; });
  refused([](Heads& h, KvCache&) { h = {9, 1, 64}; });
  refused([](Heads& h, KvCache&) { h = {3, 2, 128}; });
}

}  // namespace
}  // namespace rlk::test
