package index

import "strings"

// stem returns the stem of an English word by Porter's algorithm, as FTS5 does. word is in lower case. Other words
// than those of the letters a to z stay as they are.
func stem(word string) string {
	if len(word) < 3 || strings.IndexFunc(word, func(r rune) bool { return r < 'a' || r > 'z' }) >= 0 {
		return word
	}
	w := stemmer{b: []byte(word)}
	w.plurals()
	w.pastTense()
	if w.ends("y") && w.hasVowel() {
		w.set("i")
	}
	w.replaceFirst(0, step2)
	w.replaceFirst(0, step3)
	w.derivations()
	w.final()
	return string(w.b)
}

// stemmer holds a word, and the length of what is before the ending that was found last.
type stemmer struct {
	b []byte
	j int
}

// vowel reports whether letter i is a vowel; y is one after a consonant.
func (w *stemmer) vowel(i int) bool {
	switch w.b[i] {
	case 'a', 'e', 'i', 'o', 'u':
		return true
	case 'y':
		return i > 0 && !w.vowel(i-1)
	}
	return false
}

// measure counts the changes from vowels to consonants before the ending.
func (w *stemmer) measure() (m int) {
	for i := 1; i < w.j; i++ {
		if w.vowel(i-1) && !w.vowel(i) {
			m++
		}
	}
	return m
}

func (w *stemmer) hasVowel() bool {
	for i := range w.j {
		if w.vowel(i) {
			return true
		}
	}
	return false
}

func (w *stemmer) doubleConsonant() bool {
	n := len(w.b)
	return n >= 2 && w.b[n-1] == w.b[n-2] && !w.vowel(n-1)
}

// short reports whether the first n letters end with consonant, vowel and consonant, the last not w, x or y.
func (w *stemmer) short(n int) bool {
	if n < 3 || w.vowel(n-1) || !w.vowel(n-2) || w.vowel(n-3) {
		return false
	}
	return !strings.ContainsRune("wxy", rune(w.b[n-1]))
}

func (w *stemmer) ends(s string) bool {
	if len(w.b) <= len(s) || string(w.b[len(w.b)-len(s):]) != s {
		return false
	}
	w.j = len(w.b) - len(s)
	return true
}

func (w *stemmer) set(s string) { w.b = append(w.b[:w.j], s...) }

func (w *stemmer) plurals() {
	switch {
	case w.ends("sses"), w.ends("ies"):
		w.b = w.b[:len(w.b)-2]
	case w.ends("ss"):
	case w.ends("s"):
		w.set("")
	}
}

func (w *stemmer) pastTense() {
	if w.ends("eed") {
		if w.measure() > 0 {
			w.set("ee")
		}
		return
	}
	if !(w.ends("ed") && w.hasVowel() || w.ends("ing") && w.hasVowel()) {
		return
	}
	w.set("")
	switch {
	case w.ends("at"), w.ends("bl"), w.ends("iz"):
		w.b = append(w.b, 'e')
	case w.doubleConsonant() && !strings.ContainsRune("lsz", rune(w.b[len(w.b)-1])):
		w.b = w.b[:len(w.b)-1]
	default:
		if w.j = len(w.b); w.measure() == 1 && w.short(len(w.b)) {
			w.b = append(w.b, 'e')
		}
	}
}

// step2 and step3 are endings with what replaces them, the longer ones first.
var (
	step2 = []string{
		"ational", "ate", "tional", "tion", "enci", "ence", "anci", "ance", "izer", "ize", "bli", "ble", "alli", "al",
		"entli", "ent", "eli", "e", "ousli", "ous", "ization", "ize", "ation", "ate", "ator", "ate", "alism", "al",
		"iveness", "ive", "fulness", "ful", "ousness", "ous", "aliti", "al", "iviti", "ive", "biliti", "ble",
		"logi", "log",
	}
	step3 = []string{
		"icate", "ic", "ative", "", "alize", "al", "iciti", "ic", "ical", "ic", "ful", "", "ness", "",
	}
)

// replaceFirst replaces the first ending that is found, if the measure of what is before it exceeds least.
func (w *stemmer) replaceFirst(least int, endings []string) {
	for i := 0; i < len(endings); i += 2 {
		if w.ends(endings[i]) {
			if w.measure() > least {
				w.set(endings[i+1])
			}
			return
		}
	}
}

func (w *stemmer) derivations() {
	for _, end := range []string{
		"ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize",
		"ion", "al", "er", "ic", "ou",
	} {
		if !w.ends(end) {
			continue
		}
		if end == "ion" && w.b[w.j-1] != 's' && w.b[w.j-1] != 't' {
			continue
		}
		if w.measure() > 1 {
			w.set("")
		}
		return
	}
}

func (w *stemmer) final() {
	if w.ends("e") {
		if m := w.measure(); m > 1 || m == 1 && !w.short(w.j) {
			w.set("")
		}
	}
	if w.b[len(w.b)-1] == 'l' && w.doubleConsonant() {
		if w.j = len(w.b); w.measure() > 1 {
			w.b = w.b[:len(w.b)-1]
		}
	}
}
