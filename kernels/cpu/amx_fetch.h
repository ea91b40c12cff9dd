// Rows that are needed next, fetched to the second-level cache a few at a time while tiles multiply. Included by
// amx.cpp after rows.h.
//
// The rows of one head lie far apart, where the hardware does not look ahead; packed all at once, they are waited for
// as long as they are multiplied, if there are few (NOTES.md). A hint and no more: nothing is read.

class RowsAhead {
 public:
  // Rows [first, last) of queries, with their group. Then those of which tensors.
  FW_INLINE void start_queries(const Scope& scope, int64_t first, int64_t last) {
    start(scope, first, last, scope.group);
    query_ = scope.query(first), head_ = scope.head(first), in_group_ = head_ - scope.first_head;
  }
  FW_INLINE void add_queries(const abi::Tensor& t, int dim) {
    if (left_ <= 0 || !t.data) return;
    const int64_t of_group = t.stride[1] - int64_t{group_ - 1} * t.stride[2];
    add(t, dim, query_offset(t, scope_->seq, query_, head_), t.stride[2], of_group);
  }
  // Rows [first, last) of keys. In pages they do not lie in order and are left to those who pack them.
  FW_INLINE void start_keys(const Scope& scope, int64_t first, int64_t last) {
    start(scope, first, scope.p->block_table ? first : last, 1);
    query_ = first, in_group_ = 0;
  }
  FW_INLINE void add_keys(const abi::Tensor& t, int dim) {
    if (left_ <= 0 || !t.data) return;
    add(t, dim, key_offset(*scope_->p, t, scope_->seq, query_, scope_->kv_head), 0, t.stride[1]);
  }
  FW_INLINE void stop() { left_ = 0; }
  FW_INLINE int64_t left() const { return left_; }

  // The next `count` of them.
  FW_INLINE void fetch(int64_t count) {
    FW_NO_UNROLL for (; count > 0 && left_ > 0; --count, --left_) {
      const bool ends_group = ++in_group_ == group_;
      if (ends_group) in_group_ = 0;
      FW_NO_UNROLL for (int i = 0; i < tensors_; ++i) {
        Rows& rows = rows_[i];
        FW_NO_UNROLL for (int64_t byte = 0; byte < rows.bytes; byte += 64) __builtin_prefetch(rows.at + byte, 0, 2);
        rows.at += ends_group ? rows.to_next_query : rows.to_next_head;
      }
    }
  }

 private:
  struct Rows {
    const char* at;
    int64_t bytes, to_next_head, to_next_query;
  };
  FW_INLINE void start(const Scope& scope, int64_t first, int64_t last, int group) {
    scope_ = &scope, left_ = last > first ? last - first : 0, group_ = group, tensors_ = 0;
  }
  FW_INLINE void add(const abi::Tensor& t, int dim, int64_t offset, int64_t head_stride, int64_t query_stride) {
    const int64_t number = t.dtype == abi::kF32 ? 4 : 2;
    rows_[tensors_++] = {static_cast<const char*>(t.data) + offset * number, dim * number, head_stride * number,
                         query_stride * number};
  }

  const Scope* scope_ = nullptr;
  int64_t left_ = 0;
  int64_t query_ = 0;  // or key: the first
  int32_t head_ = 0;
  int group_ = 1, in_group_ = 0, tensors_ = 0;
  Rows rows_[3];
};

// The same for sums of a task, which lie side by side.
class SumsAhead {
 public:
  FW_INLINE void start(const float* sums, int64_t floats) { at_ = sums, end_ = sums + floats; }
  FW_INLINE void fetch(int64_t lines) {
    FW_NO_UNROLL for (; lines > 0 && at_ < end_; --lines, at_ += kLine) __builtin_prefetch(at_, 0, 2);
  }

 private:
  static constexpr int kLine = 16;
  const float *at_ = nullptr, *end_ = nullptr;
};

// So many of what is left in each of `turns`, rounded up.
FW_INLINE int64_t share_of(int64_t left, int64_t turns) { return turns > 0 ? (left + turns - 1) / turns : left; }
