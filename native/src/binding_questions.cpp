// Questions as Python asks them; the model checks them.
#include "binding.h"

#include <nanobind/stl/vector.h>

using namespace nb::literals;

namespace outrider {
namespace {

Question ask(Question::Kind kind, const std::vector<int>& rows, int places, bool log_probs) {
  Question question;
  question.kind = kind;
  question.sequences = rows;
  question.places = places;
  question.log_probs = log_probs;
  return question;
}

Question ask_likeliest(const std::vector<int>& rows, int places, bool log_probs,
                       const std::vector<int>& always, const std::vector<int>& ends,
                       const std::vector<int>& early) {
  Question question = ask(Question::Kind::likeliest, rows, places, log_probs);
  question.forbidden = {always, {}, ends, early};
  return question;
}

Question ask_top(const std::vector<int>& rows, int count, const std::vector<int>& always,
                 const std::vector<int>& ends, const std::vector<int>& early) {
  Question question = ask(Question::Kind::top, rows, 1, true);
  question.count = count;
  question.forbidden = {always, {}, ends, early};
  return question;
}

Question ask_draw(const std::vector<int>& rows, bool log_probs, double temperature, int top_k,
                  double top_p, const std::vector<double>& uniform, const std::vector<int>& always,
                  const std::vector<int>& ends, const std::vector<int>& early) {
  Question question = ask(Question::Kind::draw, rows, 1, log_probs);
  question.temperature = temperature;
  question.top_k = top_k;
  question.top_p = top_p;
  question.uniform = uniform;
  question.forbidden = {always, {}, ends, early};
  return question;
}

Question ask_log_probs(const std::vector<int>& rows, int places, const Tokens& given,
                       const std::vector<int>& ends) {
  Question question = ask(Question::Kind::given, rows, places, true);
  question.given = given;
  question.ends = ends;
  return question;
}

}  // namespace

void bind_questions(nb::module_& module) {
  nb::class_<Question>(module, "Question")
      .def_static("likeliest", &ask_likeliest, "rows"_a, "places"_a, "log_probs"_a, "forbidden"_a,
                  "ends"_a, "early"_a)
      .def_static("top", &ask_top, "rows"_a, "count"_a, "forbidden"_a, "ends"_a, "early"_a)
      .def_static("draw", &ask_draw, "rows"_a, "log_probs"_a, "temperature"_a, "top_k"_a,
                  "top_p"_a, "uniform"_a, "forbidden"_a, "ends"_a, "early"_a)
      .def_static("log_probs", &ask_log_probs, "rows"_a, "places"_a, "given"_a, "ends"_a);
}

}  // namespace outrider
