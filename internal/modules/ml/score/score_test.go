package score

import (
	"encoding/json"
	"math"
	"os"
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
	if math.Abs(got-want) > 1e-5 {
		t.Errorf("%s is %.6f, want %.6f", what, got, want)
	}
}

// The scores are those of the reference implementations, which testdata/overlap.json names.
func TestOverlapIsThatOfTheReferences(t *testing.T) {
	b, err := os.ReadFile("testdata/overlap.json")
	if err != nil {
		t.Fatal(err)
	}
	var known struct {
		Rows []struct {
			Text       string
			References []string
			BLEU, ChrF float64
			RougeL     *float64 `json:"rouge_l"`
		}
	}
	if err := json.Unmarshal(b, &known); err != nil || len(known.Rows) < 15 {
		t.Fatalf("%d rows, %v", len(known.Rows), err)
	}
	for _, r := range known.Rows {
		near(t, "BLEU of "+r.Text, BLEU(r.Text, r.References).Score, r.BLEU)
		near(t, "chrF of "+r.Text, ChrF(r.Text, r.References).Score, r.ChrF)
		if r.RougeL != nil {
			near(t, "ROUGE-L of "+r.Text, RougeL(r.Text, r.References).Score, *r.RougeL)
		}
	}
}

// Hostile texts: empty ones, signs alone, and ones that are far too long cost little and give a number.
func TestOverlapOfAnyText(t *testing.T) {
	long := strings.Repeat("one two three, ", 2_000)
	for _, text := range []string{"", ".", "\xff\xfe", "-\n", long} {
		for _, reference := range []string{"", "...", long} {
			for name, rate := range map[string]func(string, []string) Result{"BLEU": BLEU, "chrF": ChrF, "ROUGE-L": RougeL} {
				if r := rate(text, []string{reference}); !(r.Score >= 0 && r.Score <= 1) || !(r.Confidence >= 0 && r.Confidence < 1) {
					t.Errorf("%s of %.10q and %.10q: %+v", name, text, reference, r)
				}
			}
		}
	}
	if c := RougeL("one two", []string{"one two"}).Confidence; c > .4 {
		t.Errorf("two words give confidence %v", c)
	}
}

func TestNumbersAreFound(t *testing.T) {
	for text, want := range map[string]bool{
		"it is 1,024": true, "1024.0": true, "1.024e3": true, "first 5, then 1024": true, "1023": false, "none": false,
		"<think>5</think>1024": true, "1024 <think>": true, "512-1024": true, "-1024": false, "x=1024.": true,
		"v1024": true, "1,024 (not -1024)": false, "1e999": false,
	} {
		if r, err := Numeric(text, []string{"1024"}, 0); err != nil || r.Passed != want {
			t.Errorf("%q: got %+v, %v", text, r, err)
		}
	}
	if _, err := Numeric("5", []string{"five"}, 0); err == nil {
		t.Error("a reference without a number was accepted")
	}
	if r, err := Numeric("it is \u22127", []string{"5", "-7", "9"}, 0); err != nil || !r.Passed {
		t.Errorf("one of several references: got %+v, %v", r, err)
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
	near(t, "low", low, .490162)
	near(t, "high", high, .943318)
}
