// The order of what the search finds: titles with words of the question first, guides before chapters, and these before
// the pages of single rules, which a question by ID finds first as ever.
"use strict";

Scorer.score = ([page, title, , , score]) => {
  const question = new URLSearchParams(location.search).get("q") ?? "";
  const words = question.toLowerCase().match(/\w{3,}/g) ?? [];
  const named = words.filter((word) => title.toLowerCase().includes(word)).length;
  const guide = !/^(standard|rule|reference)\//.test(page);
  return score + 4 * named + (guide ? 6 : 0) - (page.startsWith("rule/") ? 3 : 0);
};
