package language

import (
	"bytes"
	"math"
	"path/filepath"
	"slices"
)

// Verdict is what Judge found.
type Verdict struct {
	ID           string
	Confidence   float64 // 0 when nothing is known, 1 when there is no doubt
	Method       string  // name, content, words, guess or unknown
	Alternatives []Scored
}

// Scored is a language with how sure it is, from 0 to 1.
type Scored struct {
	ID         string
	Confidence float64
}

// How sure the answers are that do not come from words, below what was
// measured on files that people have.
const (
	sureByName    = 0.99
	sureByContent = 0.97
	sureByGuess   = 0.7
	leastSure     = 0.02 // alternatives below are not told
	sureByWords   = 0.05 // a guess from words below is none: the text is plain
	mostOthers    = 4
)

// Judge is Detect for those who want more than a name: when neither name nor
// marks settle it, it reads the words and lines of the content, which takes
// up to a millisecond.
func Judge(name string, head []byte) Verdict {
	t := load()
	head = head[:min(len(head), HeadSize)]
	base := filepath.Base(name)
	candidates := t.byName(base)
	id, method := Detect(name, head)
	v := Verdict{ID: id, Method: method}
	switch method {
	case "name":
		v.Confidence = sureByName
		return v
	case "content":
		v.Confidence = sureByContent
		return v
	case "guess":
		v.Confidence = sureByGuess
		for _, c := range candidates {
			if other := t.id(c); other != id && len(v.Alternatives) < mostOthers {
				v.Alternatives = append(
					v.Alternatives,
					Scored{other, round((1 - sureByGuess) / float64(len(candidates)-1))},
				)
			}
		}
		return v
	}
	if len(bytes.TrimSpace(head)) == 0 || !isText(head) {
		return v
	}
	return t.byWords(head)
}

// isText reports whether there are so few control characters that people may
// have written it.
func isText(head []byte) bool {
	odd := 0
	for _, c := range head {
		if c == 0 {
			return false
		}
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != 0x1b {
			odd++
		}
	}
	return odd*50 < len(head)
}

// byWords answers from the text alone.
func (t *tables) byWords(head []byte) Verdict {
	ranked := words().rank(head)
	v := Verdict{Method: "words"}
	for i, s := range ranked[:mostOthers+1] {
		one := Scored{Unknown, round(s.Confidence)}
		if l := t.named[s.ID]; l != nil {
			one.ID = t.id(l)
		}
		switch {
		case i == 0:
			v.ID, v.Confidence = one.ID, one.Confidence
		case one.Confidence >= leastSure:
			v.Alternatives = append(v.Alternatives, one)
		}
	}
	if v.Confidence < sureByWords && v.ID != Unknown {
		v.Alternatives = append([]Scored{{v.ID, v.Confidence}}, v.Alternatives...)
		v.Alternatives = slices.DeleteFunc(
			v.Alternatives,
			func(s Scored) bool { return s.ID == Unknown || s.Confidence < leastSure },
		)
		v.ID, v.Confidence, v.Method = Unknown, 0, "unknown"
	}
	return v
}

func round(f float64) float64 { return math.Round(f*100) / 100 }
