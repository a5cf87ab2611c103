package secret

import "strings"

// words in the name of a variable mark its value as a secret.
var words = []string{
	"SECRET",
	"PASSWORD",
	"PASSWD",
	"PASSPHRASE",
	"TOKEN",
	"CREDENTIAL",
	"APIKEY",
	"API_KEY",
	"ACCESS_KEY",
	"PRIVATE_KEY",
	"AUTH_KEY",
}

// beginnings are prefixes of keys that are recognized without the name of the variable.
var beginnings = []string{"gh_", "ghp_", "github_pat_", "glpat-", "sk-", "xoxb-", "xoxp-", "AKIA", "eyJ", "-----BEGIN"}

const leastKey = 20 // bytes of a key that is recognized by its prefix

// Suspicious reports whether a variable looks like a secret, by its name or by its value. Variables
// that refer to something else, such as the path of a file, do not.
func Suspicious(name, value string) bool {
	if value == "" {
		return false
	}
	name = strings.ToUpper(name)
	named := strings.HasSuffix(name, "_KEY") || strings.HasSuffix(name, "_PAT") || name == "KEY"
	for _, w := range words {
		named = named || strings.Contains(name, w)
	}
	for _, not := range []string{"_FILE", "_PATH", "_URL", "_DIR", "_TTL", "_LIMIT", "_COUNT", "MAX_", "_ID"} {
		named = named && !strings.HasSuffix(name, not) && !(not == "MAX_" && strings.HasPrefix(name, not))
	}
	if named {
		return true
	}
	for _, b := range beginnings {
		if strings.HasPrefix(value, b) && len(value) >= leastKey {
			return true
		}
	}
	return false
}
