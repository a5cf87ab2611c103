package process

import "time"

// DefaultTotal is how many processes run at once on a host if nothing is said.
const DefaultTotal = 1000

// Settings are the settings of the module, which the configuration of a host
// embeds. Each 0 stands for the default.
type Settings struct {
	PerOwner   int           `yaml:"running" doc:"Processes of one caller in one context at once; 0 means 256."`
	PerContext int           `yaml:"context" doc:"Processes of one context at once, of all its callers together; 0 means as many as on the host."`
	Total      int           `yaml:"everyones" doc:"Processes at once on this host, which callers share: each may have as many as it leaves free, and a sixteenth is for administrators; 0 means 1000."`
	Processes  int           `doc:"How many processes and threads one process may become, where the system can count them; 0 means 512."`
	Buffer     int           `doc:"How much of each stream of a process is kept, the newest; 0 means 1 MiB." unit:"bytes"`
	MaxEnded   int           `yaml:"kept" doc:"Ended processes of one caller that are remembered; 0 means 50."`
	Retention  time.Duration `yaml:"keep" doc:"For how long they are; 0 means 1h."`
}
