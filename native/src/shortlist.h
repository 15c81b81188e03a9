// The words that may follow a source, and the part of the head that scores them: a lexical shortlist.
#pragma once

#include "matrix.h"

#include <algorithm>
#include <vector>

namespace outrider {

constexpr float kUnlisted = -3e38f;  // the score of a word that may not follow

struct Shortlist {
  std::vector<int> words;  // in order
  Buffer<unsigned char> numbers;
  Matrix head;  // which looks at `numbers`

  Shortlist(std::vector<int> listed, const Matrix& whole)
      : words(std::move(listed)), head(whole.gather(words, numbers)) {}

  // The column of a word; -1 where it is not listed.
  int find(int word) const {
    const auto found = std::lower_bound(words.begin(), words.end(), word);
    return found == words.end() || *found != word ? -1 : static_cast<int>(found - words.begin());
  }
  // Takes the words that are not listed from some columns of a row of scores.
  void leave_out(Range columns, float* row) const {
    auto listed = std::lower_bound(words.begin(), words.end(), columns.begin);
    for (int word = columns.begin; word < columns.end; ++word) {
      if (listed != words.end() && *listed == word)
        ++listed;
      else
        row[word] = kUnlisted;
    }
  }
  std::size_t bytes() const { return numbers.size() + words.size() * sizeof(int); }
};

}  // namespace outrider
