"use strict";

// A word, a run of spaces, or one other character: what a difference is made of.
const PIECES = /\s+|[\p{L}\p{N}_]+|[^]/gu;
const MOST_CELLS = 4000000;
const LEAST_IN_COMMON = 0.4;

/** Which pieces of two texts are common to both: two arrays of [text, isCommon]. */
function difference(before, after) {
  const a = before.match(PIECES) || [];
  const b = after.match(PIECES) || [];
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const kept = [new Uint8Array(a.length).fill(1, 0, head), new Uint8Array(b.length).fill(1, 0, head)];
  kept[0].fill(1, a.length - tail);
  kept[1].fill(1, b.length - tail);
  markCommon(a.slice(head, a.length - tail), b.slice(head, b.length - tail), head, kept);
  if (shareInCommon(a, kept[0], b) < LEAST_IN_COMMON) kept.forEach((flags) => flags.fill(0));
  return [spans(a, kept[0]), spans(b, kept[1])];
}

/** Marks a longest common subsequence, where the table for it is not too large. */
function markCommon(a, b, head, kept) {
  const width = b.length + 1;
  if (!a.length || !b.length || (a.length + 1) * width > MOST_CELLS) return;
  const lengths = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const here = i * width + j;
      lengths[here] =
        a[i] === b[j] ? lengths[here + width + 1] + 1 : Math.max(lengths[here + width], lengths[here + 1]);
    }
  }
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    const here = i * width + j;
    if (a[i] === b[j]) {
      kept[0][head + i++] = 1;
      kept[1][head + j++] = 1;
    } else if (lengths[here + width] >= lengths[here + 1]) i++;
    else j++;
  }
}

/** Where texts have little in common, the words that they happen to share explain nothing. */
function shareInCommon(a, keptOfA, b) {
  const size = (pieces) => pieces.reduce((sum, piece) => sum + piece.trim().length, 0);
  const larger = Math.max(size(a), size(b));
  return larger ? size(a.filter((_, position) => keptOfA[position])) / larger : 1;
}

function spans(pieces, kept) {
  const joined = [];
  pieces.forEach((piece, position) => {
    const last = joined.at(-1);
    if (last && last[1] === kept[position]) last[0] += piece;
    else joined.push([piece, kept[position]]);
  });
  return joined;
}
