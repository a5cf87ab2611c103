package code

import (
	_ "embed" // of what programs call tools with
	"fmt"

	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/sandbox/interpreter"
)

//go:embed tools.js
var nodeTools string

// language is a language of programs.
type language struct {
	name        string
	interpreter interpreter.Language
	program     string // name of the program's file
}

var languages = map[string]language{
	"python":     {"Python", interpreter.Python, "program.py"},
	"javascript": {"JavaScript", interpreter.Node, "program.js"},
	"typescript": {"TypeScript", interpreter.Node, "program.ts"},
}

// files returns the files of a program in its sandbox: the program, what it calls tools with, and the signatures of
// the tools.
func (l language) files(r *run, tools toolsearch.Catalog) map[string]string {
	files := map[string]string{l.program: r.code, "args.json": string(r.args)}
	stubs := r.m.stubs.of(tools)
	if l.interpreter == interpreter.Python {
		files["tools.py"], files["tools.pyi"] = interpreter.PythonTools, stubs.python
	} else {
		files["tools.js"], files["tools.d.ts"] = nodeTools, stubs.typescript
	}
	return files
}

// pythonStart starts a program in Python, with the module that the interpreter has, if it has one.
const pythonStart = `import sys
try:
    import _gatehouse_tools as tools
except ImportError:
    sys.path.insert(0, %q)
    import tools
sys.modules["tools"] = tools
tools._run(%d, %q, globals())
`

// start returns the code that starts a program.
func (l language) start() string {
	path := folder + "/" + l.program
	if l.interpreter == interpreter.Python {
		return fmt.Sprintf(pythonStart, folder, port, path)
	}
	// A program in TypeScript is a function already.
	return fmt.Sprintf("require(%q).run(%d, %q, require, %t)\n", folder+"/tools.js", port, path,
		l.program == "program.ts")
}
