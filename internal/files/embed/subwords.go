package embed

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// wordMark stands for the space before a word in the pieces of SentencePiece.
const wordMark = "▁"

// mostPiece is the length in bytes of the longest word that is cut into pieces; of a longer one the beginning is.
const mostPiece = 400

// splitter cuts a text into the numbers of tokens, at most about most of them. A number below 0 is no token.
type splitter interface {
	split(text string, most int) []int32
}

// split implements splitter.
func (w *wordPieces) split(text string, most int) (out []int32) {
	w.words(text, func(word string) bool {
		out = w.pieces(out, word)
		return len(out) < most
	})
	return out
}

// unigram cuts words into the pieces that are most probable together, as the unigram model of SentencePiece.
type unigram struct {
	ids     map[string]int32
	scores  []float64 // logarithms of the probabilities
	longest int       // piece in bytes
	unknown float64   // score of a character that no piece has
	lower   bool
}

func newUnigram(vocab json.RawMessage, lower bool) (*unigram, error) {
	var pairs [][2]json.RawMessage
	if err := json.Unmarshal(vocab, &pairs); err != nil || len(pairs) == 0 {
		return nil, errors.New("tokenizer.json: its vocab is no list of pieces and scores")
	}
	u := &unigram{ids: make(map[string]int32, len(pairs)), scores: make([]float64, len(pairs)), lower: lower}
	least := 0.0
	for i, p := range pairs {
		var piece string
		if err := errors.Join(json.Unmarshal(p[0], &piece), json.Unmarshal(p[1], &u.scores[i])); err != nil {
			return nil, fmt.Errorf("tokenizer.json: piece %d of its vocab: %w", i, err)
		}
		u.ids[piece] = int32(i)
		u.longest = max(u.longest, len(piece))
		least = min(least, u.scores[i])
	}
	u.unknown = least - 10 // as SentencePiece has it
	return u, nil
}

// split implements splitter. Texts are normalised by NFKC, which the tables of characters of SentencePiece are made of.
func (u *unigram) split(text string, most int) (out []int32) {
	if text = norm.NFKC.String(text); u.lower {
		text = strings.ToLower(text)
	}
	for word := range strings.FieldsFuncSeq(text, unicode.IsSpace) {
		if out = append(out, u.best(wordMark+word[:min(len(word), mostPiece)])...); len(out) >= most {
			break
		}
	}
	return out
}

// best returns the pieces of a word whose scores have the largest sum; -1 for characters that no piece has.
func (u *unigram) best(word string) (ids []int32) {
	n := len(word)
	score, from, piece := make([]float64, n+1), make([]int, n+1), make([]int32, n+1)
	for i := 1; i <= n; i++ {
		score[i] = math.Inf(-1)
	}
	for i := range n {
		if !utf8.RuneStart(word[i]) || math.IsInf(score[i], -1) {
			continue
		}
		reach := func(end int, id int32, s float64) {
			if s += score[i]; s > score[end] {
				score[end], from[end], piece[end] = s, i, id
			}
		}
		_, size := utf8.DecodeRuneInString(word[i:])
		reach(i+size, -1, u.unknown)
		for end := i + size; end <= min(n, i+u.longest); end++ {
			if id, ok := u.ids[word[i:end]]; ok {
				reach(end, id, u.scores[id])
			}
		}
	}
	for i := n; i > 0; i = from[i] {
		ids = append(ids, piece[i])
	}
	slices.Reverse(ids)
	return ids
}

// bytePairs merges the characters of words to the pieces of a vocabulary, the earliest merge first, as the models of
// Llama do. Characters without a piece are those of their bytes, such as <0xE2>.
type bytePairs struct {
	ids   map[string]int32
	ranks map[[2]string]int
}

func newBytePairs(vocab, merges json.RawMessage) (*bytePairs, error) {
	b := &bytePairs{ranks: map[[2]string]int{}}
	if err := json.Unmarshal(vocab, &b.ids); err != nil || len(b.ids) == 0 {
		return nil, errors.New("tokenizer.json has no vocabulary")
	}
	for piece := range b.ids {
		if i := strings.LastIndex(piece, wordMark); i > 0 && strings.Trim(piece[:i], wordMark) != "" {
			return nil, fmt.Errorf("tokenizer.json: the piece %q goes over the end of a word", piece)
		}
	}
	var pairs [][2]string
	if json.Unmarshal(merges, &pairs) != nil {
		var lines []string
		if err := json.Unmarshal(merges, &lines); err != nil {
			return nil, errors.New("tokenizer.json: its merges are no list of pairs")
		}
		for _, line := range lines {
			first, second, _ := strings.Cut(line, " ")
			pairs = append(pairs, [2]string{first, second})
		}
	}
	for i, p := range pairs {
		b.ranks[p] = i
	}
	return b, nil
}

// split implements splitter.
func (b *bytePairs) split(text string, most int) (out []int32) {
	text = wordMark + strings.ReplaceAll(text, " ", wordMark)
	for len(text) > 0 && len(out) < most {
		n := wordEnd(text)
		out = b.merge(out, text[:min(n, mostPiece)])
		text = text[n:]
	}
	return out
}

// wordEnd returns where the next word of a text begins: no piece goes over it.
func wordEnd(text string) int {
	n := 0
	for strings.HasPrefix(text[n:], wordMark) {
		n += len(wordMark)
	}
	if i := strings.Index(text[n:], wordMark); i >= 0 {
		return n + i
	}
	return len(text)
}

func (b *bytePairs) merge(out []int32, word string) []int32 {
	parts := strings.Split(word, "") // its characters
	for len(parts) > 1 {
		at, best := -1, math.MaxInt
		for i := range len(parts) - 1 {
			if rank, ok := b.ranks[[2]string{parts[i], parts[i+1]}]; ok && rank < best {
				at, best = i, rank
			}
		}
		if at < 0 {
			break
		}
		parts[at] += parts[at+1]
		parts = slices.Delete(parts, at+1, at+2)
	}
	for _, p := range parts {
		if id, ok := b.ids[p]; ok {
			out = append(out, id)
			continue
		}
		for i := range len(p) {
			id, ok := b.ids[fmt.Sprintf("<0x%02X>", p[i])]
			if !ok {
				id = -1
			}
			out = append(out, id)
		}
	}
	return out
}
