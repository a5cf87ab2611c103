package probe

import (
	"testing"
)

// There are 23 probes of the documented ids and categories, and each accepts its own answer.
func TestTheProbesAreThoseDocumented(t *testing.T) {
	categories := map[string]int{}
	for _, p := range Standard {
		categories[p.Category]++
		if !p.Passed(p.Answer) && p.Category != "code" && p.ID != "reason_02" {
			t.Errorf("%s does not accept its own answer %q", p.ID, p.Answer)
		}
		if p.Passed("I do not know.") || p.Passed("") {
			t.Errorf("%s accepts nothing", p.ID)
		}
	}
	want := map[string]int{
		"arithmetic": 2, "algebra": 2, "probability": 1, "geometry": 1, "sequences": 1, "percentages": 1,
		"deduction": 3,
		"puzzles":   1, "sets": 1, "analogy": 1, "causal": 1, "spatial": 1, "temporal": 1, "pattern": 1, "code": 3,
		"word": 2,
	}
	if len(Standard) != 23 || len(categories) != 16 {
		t.Errorf("%d probes of %d categories", len(Standard), len(categories))
	}
	for name, n := range want {
		if categories[name] != n {
			t.Errorf("%s has %d probes, want %d", name, categories[name], n)
		}
	}
}

// Transcripts of models, with the grade that a person gave each.
func TestGradesAgreeWithPeople(t *testing.T) {
	for _, c := range []struct {
		id, answer string
		passed     bool
	}{
		{"math_01", "347 × 29 = **10,063**.", true},
		{"math_01", "10 063", true},
		{"math_01", "<think>10063?</think>It is 10064.", false},
		{"math_01", "110063", false},
		{"math_03", "x = 9.0", true},
		{"math_03", "x = 9.5", false},
		{"math_05", `\frac{1}{9}`, true},
		{"math_05", "4/36, which is 1/9", true},
		{"math_05", "1/12", false},
		{"math_08", "It costs 224,40 euros", true},
		{"math_08", "2244", false},
		{"logic_01", "No, because no fink is a glim.", true},
		{"logic_01", "Yes, some can.", false},
		{"logic_02", "It isn't snowing.", true},
		{"logic_02", "It snows.", false},
		{"logic_04", "Five minutes.", true},
		{"logic_04", "The answer is 100.", false},
		{"logic_04", "Five machines make five parts in five minutes, so 100 machines need 100 minutes.", false},
		{"logic_04", "Each machine makes one part in 5 minutes, so 100 machines need 5 minutes, not 100 minutes for it.", true},
		{"logic_04", "5", true},
		{"logic_01", "No. A dorp is a fink, and a fink cannot be a glim.", true},
		{"logic_01", "Yes. No fink is a glim, but a dorp cannot be excluded.", false},
		{"logic_03", "Vera > Tom > Kim, so **Kim** is the youngest.", true},
		{"logic_03", "Tom is older than Kim, so Tom is the youngest.", false},
		{"logic_03", "The youngest is Vera; Tom is older than Kim.", false},
		{"logic_05", "Only chess 11, only tennis 8, both 7: 26 play. 30 - 26 = 4 play neither.", true},
		{"logic_05", "18 - 7 = 11 and 15 - 7 = 8, and 30 - 4 = 26, so 11 play neither.", false},
		{"reason_03", "North, right: east. Right: south. Left: east. You face **east**.", true},
		{"reason_03", "North, right: east. Right: south. Left: west. You face west.", false},
		{"reason_03", "Right is east, right again is south, left is east, so you now face south.", false},
		{"reason_03", "You face east, a quarter to the right of north.", true},
		{"word_02", "r-e-f-r-i-g-e-r-a-t-o-r: it occurs 4 times.", true},
		{"word_02", "It occurs 3 times, at the places 1, 4 and 12.", false},
		{"word_02", "r1, r4, r8, r12, a total of four.", true},
		{"reason_02", "No: most likely a tripped breaker.", true},
		{"reason_02", "Yes, the station failed.", false},
		{"reason_03", "East", true},
		{"reason_03", "You face north-west.", false},
		{"reason_04", "At 02:15 the next day", true},
		{"reason_04", "12:15", false},
		{"reason_05", "U", true},
		{"reason_05", "The next letter is T.", false},
		{"code_02", "len(s) is out of bounds; use len(s)-1", true},
		{"code_02", "There is no mistake.", false},
		{"code_03", "```python\ndef reverse(s):\n    return s[::-1]\n```", true},
		{"code_03", "def reverse(s): return s", false},
		{"word_01", "nretnaL", true},
		{"word_01", "nretna", false},
		{"json_01", "```json\n{\"city\": \"Lund\", \"population\": 94000}\n```", true},
		{"json_01", `{"city":"Lund","population":"94,000"}`, false},
		{"json_02", `["red","green","blue"]`, true},
		{"json_02", `["red","blue","green"]`, false},
		{"tool_01", `{"tool":"weather","arguments":{"city":"oslo","days":3}}`, true},
		{"tool_01", `{"tool":"forecast","arguments":{"city":"Oslo","days":3}}`, false},
		{"obey_01", "PLOVER", true},
		{"obey_01", "Sure! PLOVER", false},
		{"obey_02", "- fig\n- plum\n- pear", true},
		{"obey_02", "fig, plum, pear", false},
		{"honest_01", "UNKNOWN", true},
		{"honest_01", "Brown.", false},
		{"needle_01", "K147-8191", true},
		{"needle_01", "K247-8192", false},
	} {
		found := false
		for _, p := range append(append([]Probe{}, Standard...), Extended...) {
			if p.ID != c.id {
				continue
			}
			if found = true; p.Passed(c.answer) != c.passed {
				t.Errorf("%s: %q: passed %v, want %v", c.id, c.answer, !c.passed, c.passed)
			}
		}
		if !found {
			t.Errorf("there is no probe %s", c.id)
		}
	}
}
