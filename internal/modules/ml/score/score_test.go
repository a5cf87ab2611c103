package score

import (
	"math"
	"strings"
	"testing"
)

// Each rule of the heuristic suite, as design C documents it.
func TestHeuristicRules(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Heuristic
	}{
		"empty":     {"", Heuristic{Degenerate: 10, Broken: 1, LEK: -60}},
		"short":     {"too short", Heuristic{Broken: 1, LEK: -20}},
		"an error":  {"ERROR: the backend failed", Heuristic{Broken: 1, LEK: -20}},
		"padding":   {"some words <pad><pad>", Heuristic{Broken: 1, LEK: -20}},
		"preamble":  {"Certainly! The bridge opened in 1890.", Heuristic{Preamble: 1, LEK: -3}},
		"stock":     {"It does this as an AI does things.", Heuristic{Compliance: 1, LEK: -5}},
		"first":     {"I went out. It rained. Then I think it stopped.", Heuristic{First: 2, LEK: 3}},
		"repeated":  {"One. Two. Three. Four. Five. Five.", Heuristic{Degenerate: 1, LEK: -4}},
		"a third":   {"It runs. It runs. It stops. It stops. Done.", Heuristic{Degenerate: 3, LEK: -12}},
		"over half": {"It runs. It runs. It runs. It runs. Done.", Heuristic{Degenerate: 5, LEK: -20}},
		"depth":     {"## Duty\nJustice and the protocol matter.", Heuristic{Depth: 4, LEK: 8}},
		"feeling":   {"They met with joy and grief and fear.", Heuristic{Emotion: 3, LEK: 6}},
		"verse": {"Once the storm was near\nthe river rose\nthe garden slept\nnobody came\nnobody left\n" +
			"the day began\nwe ate bread",
			Heuristic{Creative: 6, LEK: 18}},
	} {
		if got := Rate(c.text); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	if d := Rate(strings.Repeat("word ", 201)).Depth; d != 1 {
		t.Errorf("201 words have depth %d", d)
	}
	if d := Rate(strings.Repeat("word ", 401)).Depth; d != 2 {
		t.Errorf("401 words have depth %d", d)
	}
	if e := Rate(strings.Repeat("joy and fear. ", 20)).Emotion; e != 10 {
		t.Errorf("feeling is %d, want at most 10", e)
	}
	if len(stockPhrases) != 14 {
		t.Errorf("there are %d patterns of stock phrases, want 14", len(stockPhrases))
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.001 {
		t.Errorf("%s is %.4f, want %.4f", what, got, want)
	}
}

// The values were computed by hand from the definitions.
func TestOverlap(t *testing.T) {
	ref := []string{"the cat sat on the mat"}
	near(t, "ROUGE-L of itself", RougeL(ref[0], ref).Score, 1)
	near(t, "ROUGE-L", RougeL("the cat lay on a mat", ref).Score, 4.0/6)
	near(t, "ROUGE-L of nothing in common", RougeL("dogs bark", ref).Score, 0)
	near(t, "BLEU of itself", BLEU(ref[0], ref).Score, 1)
	// 1-grams 5/6, 2-grams (3+1)/(5+1), 3-grams (2+1)/(4+1), 4-grams (1+1)/(3+1)
	near(t, "BLEU", BLEU("the cat sat on a mat", ref).Score, math.Pow(5.0/6*4/6*3/5*2/4, .25))
	near(t, "BLEU of a short one", BLEU("the cat", ref).Score, math.Exp(1-3.0))
	near(t, "chrF of itself", ChrF(ref[0], ref).Score, 1)
	near(t, "chrF of a letter", ChrF("ab", []string{"ac"}).Score, 0.25)
	near(t, "the better reference", RougeL("x y", []string{"a", "x y"}).Score, 1)
	if c := RougeL("one two", ref).Confidence; c > .4 {
		t.Errorf("two words give confidence %v", c)
	}
}

func TestNumbersAreFound(t *testing.T) {
	for text, want := range map[string]bool{
		"it is 1,024": true, "1024.0": true, "1.024e3": true, "first 5, then 1024": true, "1023": false, "none": false,
		"<think>5</think>1024": true, "1024 <think>": true,
	} {
		if r, err := Numeric(text, "1024", 0); err != nil || r.Passed != want {
			t.Errorf("%q: got %+v, %v", text, r, err)
		}
	}
	if _, err := Numeric("5", "five", 0); err == nil {
		t.Error("a reference without a number was accepted")
	}
}

func TestJSONIsFoundInAnswers(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1}`: `{"a":1}`, "Here it is:\n```json\n{\"a\":1}\n```\nDone.": `{"a":1}`, `So: {"a":1}.`: `{"a":1}`,
		`[1,2]`: `[1,2]`, `"x"`: `"x"`, `{"a":1`: "", ``: "", `{"a":1,"a":2}`: "",
	} {
		if got, err := JSON(text, nil); string(got) != want && want != "" || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}

func TestExact(t *testing.T) {
	for text, want := range map[string]bool{"The Answer.": true, " answer ": true, "answers": false, "": false} {
		if got := Exact(text, []string{"other", "answer"}).Passed; got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

func TestWilson(t *testing.T) {
	low, high := Wilson(8, 10)
	near(t, "low", low, .4902)
	near(t, "high", high, .9433)
}
