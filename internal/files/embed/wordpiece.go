package embed

import (
	"errors"
	"os"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// maxVocabulary is the size of the largest vocabulary that is read, in bytes.
const maxVocabulary = 32 << 20

// maxWord is the length of a word that is known, in characters.
const maxWord = 100

// wordPieces cuts texts into the pieces of words of a vocabulary, as BERT does for models without capitals.
type wordPieces struct {
	ids                map[string]int32
	start, end, absent int32
	lower              bool
}

func readVocabulary(path string, lower bool) (*wordPieces, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) > maxVocabulary {
		return nil, errors.New("vocab.txt is too large")
	}
	w := &wordPieces{ids: map[string]int32{}, lower: lower}
	for i, piece := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		w.ids[strings.TrimSuffix(piece, "\r")] = int32(i)
	}
	for name, id := range map[string]*int32{"[CLS]": &w.start, "[SEP]": &w.end, "[UNK]": &w.absent} {
		got, ok := w.ids[name]
		if !ok {
			return nil, errors.New("vocab.txt has no " + name + "; expected the vocabulary of a BERT model")
		}
		*id = got
	}
	return w, nil
}

// tokens returns the numbers of the pieces of a text, at most most of them with those of its beginning and end.
func (w *wordPieces) tokens(text string, most int) []int32 {
	out := []int32{w.start}
	w.words(text, func(word string) bool {
		out = w.pieces(out, word)
		return len(out) < most-1
	})
	return append(out[:min(len(out), most-1)], w.end)
}

// words calls f with each word and each mark, until it returns false.
func (w *wordPieces) words(text string, f func(word string) bool) {
	if w.lower {
		text = norm.NFD.String(strings.ToLower(text))
	}
	var b strings.Builder
	more := true
	flush := func() {
		if b.Len() > 0 && more {
			more = f(b.String())
		}
		b.Reset()
	}
	for _, r := range text {
		switch {
		case !more:
			return
		case r == 0 || r == unicode.ReplacementChar || w.lower && unicode.Is(unicode.Mn, r):
		case unicode.IsSpace(r):
			flush()
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
		case isMark(r) || unicode.Is(unicode.Han, r):
			flush()
			if more {
				more = f(string(r))
			}
		default:
			b.WriteRune(r)
		}
	}
	flush()
}

// isMark reports whether BERT takes a character as a word of its own: punctuation, and what is neither a letter nor a
// digit of ASCII.
func isMark(r rune) bool {
	if r < 128 {
		return r > ' ' && r != 127 && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return unicode.IsPunct(r)
}

// pieces appends the longest pieces that make a word, from its beginning.
func (w *wordPieces) pieces(out []int32, word string) []int32 {
	runes := []rune(word)
	if len(runes) > maxWord {
		return append(out, w.absent)
	}
	from, begin := len(out), 0
	for begin < len(runes) {
		end, id := len(runes), int32(-1)
		for ; end > begin; end-- {
			piece := string(runes[begin:end])
			if begin > 0 {
				piece = "##" + piece
			}
			if found, ok := w.ids[piece]; ok {
				id = found
				break
			}
		}
		if id < 0 {
			return append(out[:from], w.absent)
		}
		out = append(out, id)
		begin = end
	}
	return out
}
