package language

import "strings"

// common are the languages that win where they share an extension with rarer
// ones.
var common = map[string]bool{
	"typescript": true, "javascript": true, "go": true, "python": true, "rust": true, "ruby": true,
	"java": true, "php": true, "c": true, "csharp": true, "html": true, "css": true, "scss": true,
	"json": true, "yaml": true, "xml": true, "markdown": true, "sql": true, "shell": true,
	"swift": true, "kotlin": true, "dockerfile": true,
}

// merged are Linguist's languages that go by another one's id.
var merged = map[string]string{
	"TSX":               "typescript",
	"Gradle Kotlin DSL": "kotlin",
}

// renamed are those whose id does not follow from their name.
var renamed = map[string]string{
	"Text":               Unknown,
	"Batchfile":          "bat",
	"JSON with Comments": "jsonc",
	"Jupyter Notebook":   "jupyter",
	"Protocol Buffer":    "proto",
	"Vim Script":         "vim",
	"Visual Basic .NET":  "vb",
}

// idOf makes an id of one of Linguist's names: Objective-C++ becomes
// objective-cpp.
func idOf(name string) string {
	if id := merged[name]; id != "" {
		return id
	}
	if id := renamed[name]; id != "" {
		return id
	}
	name = strings.NewReplacer("#", "sharp", "++", "pp", "*", "star").Replace(strings.ToLower(name))
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '+':
			return r
		case r == ' ', r == '/', r == '_':
			return '-'
		}
		return -1
	}, name)
}
