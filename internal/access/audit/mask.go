package audit

import "bytes"

// triggers are lower-case words in a text that a secret follows. The text between the word and the
// secret must contain = or :, unless free is set or the word is an option of a command.
var triggers = [...]struct {
	word string
	free bool // a space is enough
}{
	{"bearer", true}, {"basic", true}, {"password", false}, {"passwd", false}, {"passphrase", false}, {"pwd", false},
	{"secret", false}, {"token", false}, {"apikey", false}, {"api_key", false}, {"api-key", false},
	{"access_key", false}, {"access-key", false}, {"private_key", false}, {"authorization", false},
}

// second holds the second letters of triggers as a bit set, indexed by the first letter. Few positions
// in a text start with such a pair, so it rules out most of them cheaply.
var second = func() (of [256]uint32) {
	for _, x := range triggers {
		of[x.word[0]] |= 1 << (x.word[1] - 'a')
	}
	return of
}()

// mayAnnounce reports whether some trigger begins with the two lower-case letters.
func mayAnnounce(a, b byte) bool { return b >= 'a' && b <= 'z' && second[a]>>(b-'a')&1 == 1 }

// prefixes begin secrets that are recognized without a word before them.
var prefixes = [...]string{"gh_", "ghp_", "github_pat_", "sk-", "xoxb-", "xoxp-", "AKIA", "eyJ"}

const shortestKey = 16 // bytes after a prefix that make it a secret

// appendMasked appends the body of a JSON string and masks what looks like a secret in it, because
// commands often contain passwords.
func appendMasked(dst, s []byte) []byte {
	from := 0
	for i := 0; i < len(s); i++ {
		start, end := secretAt(s, i)
		if end <= start {
			continue
		}
		dst = append(dst, s[from:start]...)
		dst = append(dst, "***"...)
		from, i = end, end-1
	}
	return append(dst, s[from:]...)
}

// secretAt returns the position of the secret that the text at i announces. There is none if end is not
// greater than start.
func secretAt(s []byte, i int) (start, end int) {
	switch s[i] | 0x20 {
	case 'b', 'p', 's', 't', 'a':
		if i+1 < len(s) && mayAnnounce(s[i]|0x20, s[i+1]|0x20) {
			if start, end = announced(s, i); end > start {
				return start, end
			}
		}
		return selfEvident(s, i)
	case 'g', 'x', 'e':
		return selfEvident(s, i)
	case ':':
		return userinfo(s, i)
	}
	return 0, 0
}

// announced looks for a trigger at i and for the secret after it.
func announced(s []byte, i int) (start, end int) {
	for _, t := range triggers {
		if !hasFold(s[i:], t.word) {
			continue
		}
		at := i + len(t.word)
		for at < len(s) && isName(s[at]) {
			at++
		}
		assigned := t.free || isOption(s, i)
		for at < len(s) && bytes.IndexByte([]byte(" =:\"'\\"), s[at]) >= 0 {
			assigned = assigned || s[at] == '=' || s[at] == ':'
			at++
		}
		if at == i+len(t.word) || !assigned {
			return 0, 0
		}
		end = endOfWord(s, at)
		if w := s[at:end]; hasFold(w, "bearer") && len(w) == 6 || hasFold(w, "basic") && len(w) == 5 {
			return 0, 0 // the scheme; the credentials after it have a trigger of their own
		}
		return at, end
	}
	return 0, 0
}

// isOption reports whether the word at i is part of an option of a command, such as --password or
// -password.
func isOption(s []byte, i int) bool {
	for i > 0 && isName(s[i-1]) && s[i-1] != '-' {
		i--
	}
	return i > 0 && s[i-1] == '-'
}

func isName(c byte) bool {
	return c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// endOfWord returns the end of a secret that begins at i: a space, a quote, an ampersand, or an escape.
func endOfWord(s []byte, i int) int {
	for i < len(s) && bytes.IndexByte([]byte(" \"'&,;\\"), s[i]) < 0 {
		i++
	}
	return i
}

// selfEvident finds a key that is recognized by its prefix.
func selfEvident(s []byte, i int) (start, end int) {
	if i > 0 && isName(s[i-1]) {
		return 0, 0
	}
	for _, p := range prefixes {
		if !bytes.HasPrefix(s[i:], []byte(p)) {
			continue
		}
		if end = endOfWord(s, i); end-i >= len(p)+shortestKey {
			return i, end
		}
	}
	return 0, 0
}

// userinfo finds the password in scheme://user:password@host.
func userinfo(s []byte, i int) (start, end int) {
	if !bytes.HasPrefix(s[i:], []byte("://")) {
		return 0, 0
	}
	for at := i + 3; at < len(s); at++ {
		switch s[at] {
		case ':':
			if start == 0 {
				start = at + 1
			}
		case '@':
			if start == 0 {
				return 0, 0
			}
			return start, at
		case '/', ' ', '"', '?', '#':
			return 0, 0
		}
	}
	return 0, 0
}

// hasFold is strings.HasPrefix for a text in any case; word is in lower case.
func hasFold(s []byte, word string) bool {
	if len(s) < len(word) {
		return false
	}
	for i := range len(word) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}
